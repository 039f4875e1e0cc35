from unittest import mock

import pytest
from kfp import dsl

from ..component import build_image

REFERENCE = "registry.test/team/train@sha256:" + "a" * 64


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    """Select the local backend, without an image of the environment."""
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)


def test_arguments_are_passed_and_digest_returned(tmp_path, monkeypatch) -> None:
    """Arguments are passed and the digest returned."""
    # An autospec refuses arguments that the real function does not have.
    from kfp_mindspore.images.result import BuildResult
    from kfp_mindspore.steps.launch import build as image_step

    build = mock.create_autospec(
        image_step.build_step_image, return_value=BuildResult(REFERENCE, "tag", True, 10, 1, 2, 5, 0.1)
    )
    monkeypatch.setattr(image_step, "build_step_image", build)
    outputs = build_image.python_func(
        destination="registry.test/team/train",
        sources=dsl.Artifact(uri=str(tmp_path)),
        files={"a.py": "1"},
        base="base",
        command=["python", "a.py"],
        builder="cluster",
        builder_options={"namespace": "team"},
        registry={"push_secret": "login"},
    )
    assert outputs == (REFERENCE, "tag", True)
    (destination,), named = build.call_args
    assert destination == "registry.test/team/train"
    assert named["sources"] == str(tmp_path)
    assert (named["base"], named["builder"]) == ("base", "cluster")
    assert named["builder_options"] == {"namespace": "team"}
    assert named["registry"] == {"push_secret": "login"}


def test_settings_of_task_reach_build_pod(monkeypatch) -> None:
    """Settings of the task reach the build pod."""
    from kfp_mindspore.images.builders import cluster
    from kfp_mindspore.images.builders.cluster_job import JobSettings

    builder = mock.create_autospec(cluster.ClusterBuilder)
    builder.side_effect = InterruptedError
    monkeypatch.setattr(cluster, "ClusterBuilder", builder)
    resources = {"limits": {"memory": "8Gi"}}
    tolerations = [{"key": "builds", "operator": "Exists"}]
    with pytest.raises(InterruptedError):
        build_image.python_func(
            destination="registry.test/team/train",
            files={"a.py": "1"},
            base="registry.test/base",
            builder="cluster",
            builder_options={"service_account": "builder", "claim": "work", "claim_path": "/work"},
            task_config=dsl.TaskConfig(resources=resources, tolerations=tolerations, node_selector={"zone": "a"}),
        )
    assert builder.call_args.kwargs["job"] == JobSettings(
        service_account="builder", resources=resources, tolerations=tolerations, node_selector={"zone": "a"}
    )


def test_build_of_run_is_owned_by_its_workflow(monkeypatch) -> None:
    """Build of a run is owned by its workflow."""
    from kfp_mindspore.images.builders import cluster
    from kfp_mindspore.steps.handover.step_pod import StepPod
    from kfp_mindspore.steps.launch import build

    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "1"}
    builder = mock.create_autospec(cluster.ClusterBuilder, side_effect=InterruptedError)
    monkeypatch.setattr(cluster, "ClusterBuilder", builder)
    monkeypatch.setattr(build, "read_step_pod", lambda cluster: StepPod("team", workflow=workflow))
    monkeypatch.setenv("KFP_POD_NAME", "run-build")
    owners = []
    for namespace in ({}, {"namespace": "team"}, {"namespace": "builds"}):
        options = {"claim": "work", "claim_path": "/work", **namespace}
        with pytest.raises(InterruptedError):
            build_image.python_func(
                destination="a.test/b", files={"a": "1"}, base="a.test/c", builder="cluster", builder_options=options
            )
        owners.append(builder.call_args.kwargs["job"].owner)
    assert owners == [workflow, workflow, None]


def test_local_run_without_destination_builds_nothing(capsys) -> None:
    """Local run without a destination builds nothing."""
    assert build_image.python_func(files={"a.py": "1"}) == ("", "", False)
    assert "nothing to build" in capsys.readouterr().out


def test_cluster_run_needs_destination(monkeypatch) -> None:
    """Cluster run needs a destination."""
    from kfp_mindspore.errors import UserError

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    with pytest.raises(UserError, match="destination: is missing"):
        build_image.python_func(files={"a.py": "1"})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"files": {"a.py": "1"}}, "UserError", "base: is the placeholder"),
        (
            {"base": "127.0.0.1:1/b", "builder": "podman"},
            "UserError",
            "must be one of append, cluster, docker",
        ),
        (
            {"base": "127.0.0.1:1/b", "builder": "cluster", "builder_options": {"stores": "x"}},
            "ValidationError",
            "builder_options.stores: is unknown",
        ),
        ({"base": "127.0.0.1:1/b", "registry": {"insecur": []}}, "ValidationError", "registry.insecur: is unknown"),
        (
            {"base": "127.0.0.1:1/b", "builder_options": {"store": "x"}},
            "ValidationError",
            "expected nothing: this builder has no options",
        ),
        ({"base": "127.0.0.1:1/b", "registry": {"attempts": 1.0}}, "UserError", "sources, files: one of them"),
    ],
)
def test_arguments_are_validated_before_request(arguments, kind, message) -> None:
    """Arguments are validated before a request."""
    from kfp_mindspore import errors

    with pytest.raises(getattr(errors, kind), match=message):
        build_image.python_func(destination="127.0.0.1:1/team/train", **arguments)
