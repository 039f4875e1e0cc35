import subprocess
from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.images import ImageOptions, PvcContextStore, RegistryConfig
from kfp_mindspore.images.builders.cluster import ClusterBuilder
from kfp_mindspore.images.builders.cluster_job import JobSettings, make_buildkitd_config
from kfp_mindspore.images.builders.cluster_pods import (
    get_mount_error,
    get_start_error,
    get_termination,
    get_waiting_reason,
)
from kfp_mindspore.images.builders.context_store import StoredContext
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.reference import parse_reference
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from kfp_mindspore.kube.pods import PodState, read_pod

DIGEST = "sha256:" + "d" * 64
TARGET = parse_reference("registry.test:5000/team/out:tag")
CONTEXT = BuildContext([ContextEntry.from_bytes("main.py", b"print(1)\n")])
STORED = StoredContext(archive="/run/context.tar")


def make_plan(**options) -> ImagePlan:
    return ImagePlan(CONTEXT, ImageOptions("registry.test/base", **options), DIGEST)


def make_pod(builder: ClusterBuilder, plan: ImagePlan | None = None, stored: StoredContext = STORED) -> dict:
    pod = builder.make_manifest(plan or make_plan(), TARGET, stored)["spec"]["template"]["spec"]
    # The shell parses the script for any labels and arguments.
    subprocess.run(["sh", "-n"], input=pod["containers"][0]["command"][2], text=True, check=True)
    return pod


def get_script(pod: dict) -> str:
    return pod["containers"][0]["command"][2]


def test_labels_and_arguments_are_quoted() -> None:
    plan = make_plan(labels={"note": 'it\'s "$HOME" `x`'})
    script = get_script(make_pod(ClusterBuilder(build_args={"A": "b c; rm -rf /"}), plan))
    assert "'\"'\"'" in script
    assert "A=b c; rm -rf /'" in script
    assert str(TARGET) in script


def test_job_has_its_owner() -> None:
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "1"}
    owned, other = (
        ClusterBuilder(job=JobSettings(owner=given)).make_manifest(make_plan(), TARGET, STORED)["metadata"]
        for given in (owner, None)
    )
    assert owned["ownerReferences"] == [owner]
    assert "ownerReferences" not in other


def test_pod_is_not_privileged() -> None:
    settings = JobSettings(seccomp="Localhost/userns.json", service_account="builder", work_size="5Gi")
    builder = ClusterBuilder(job=settings)
    pod = make_pod(builder)
    security = pod["containers"][0]["securityContext"]
    assert "privileged" not in security
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SETGID", "SETUID"]}
    assert security["seccompProfile"] == {"type": "Localhost", "localhostProfile": "userns.json"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == "builder"
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    job = builder.make_manifest(make_plan(), TARGET, STORED)
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")


def test_secrets_are_mounted_by_name() -> None:
    registry = RegistryConfig(push_secret="push", pull_secrets=("one", "two"))
    pod = make_pod(ClusterBuilder(registry, secrets={"token": "login/key"}))
    named = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert named == {"push", "login"}
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    script = get_script(pod)
    assert "--secret id=token,src=/run/kfp-mindspore/secrets/0/token" in script
    assert "export DOCKER_CONFIG=/run/kfp-mindspore/login" in script


def test_context_is_archive_or_url() -> None:
    script = get_script(make_pod(ClusterBuilder()))
    assert "tar -xf /run/context.tar -C /build/context" in script
    pod = make_pod(ClusterBuilder(), stored=StoredContext(url="https://s3.test/b/x.tar?X-Amz-Signature=1"))
    script = get_script(pod)
    assert '--opt "context=$KFP_MINDSPORE_CONTEXT_URL"' in script
    assert "tar -xf" not in script
    assert "X-Amz" not in script
    assert pod["containers"][0]["env"][0]["value"].startswith("https://s3.test/")


@pytest.mark.parametrize(
    ("options", "plan", "message"),
    [
        ({"store": True}, {"platform": "all"}, "one platform at a time"),
        ({}, {}, "context store: missing"),
    ],
)
def test_unsupported_plans_are_refused(options, plan, message, tmp_path) -> None:
    store = PvcContextStore("claim", tmp_path) if options.pop("store", False) else None
    with pytest.raises(UserError, match=message):
        ClusterBuilder(context_store=store, **options).check(make_plan(**plan))


@pytest.mark.parametrize("secrets", [{"token": "login"}, {"a/b": "login/key"}])
def test_secret_references_are_validated(secrets) -> None:
    with pytest.raises(UserError, match="must be SECRET/KEY"):
        ClusterBuilder(secrets=secrets)


def test_buildkitd_config_has_hosts_mirrors_and_authorities(tmp_path) -> None:
    (tmp_path / "ca.crt").write_text("PEM")
    registry = RegistryConfig(
        insecure=("plain:5000",), mirrors={"docker.io": "plain:5000/docker"}, ca_file=tmp_path / "ca.crt"
    )
    toml = make_buildkitd_config(registry, ("registry.test",))
    assert '[registry."docker.io"]\nmirrors = ["plain:5000/docker"]' in toml
    assert '[registry."plain:5000"]\nhttp = true' in toml
    assert '[registry."registry.test"]\nca = ["/build/ca.crt"]' in toml
    assert "printf %s PEM > /build/ca.crt" in get_script(make_pod(ClusterBuilder(registry)))


def test_large_ca_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("x" * 200_000)
    with pytest.raises(UserError, match="must have at most 100,000 bytes, got 200,000"):
        make_pod(ClusterBuilder(RegistryConfig(ca_file=tmp_path / "ca.crt")))


def _pod(**status) -> PodState:
    return read_pod({"metadata": {"name": "p", "uid": "u"}, "status": status})


def _container(**state):
    return [{"name": "build", "image": "registry.test/tool", "state": state}]


def test_start_error_names_image_and_next_step() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    error = get_start_error(_pod(containerStatuses=_container(waiting=waiting)))
    assert error is not None
    assert "registry.test/tool: ImagePullBackOff: Back-off pulling image" in error.message
    assert "pull secrets" in error.hint
    assert get_start_error(_pod(containerStatuses=_container(waiting={"reason": "ContainerCreating"}))) is None


def test_waiting_reason_is_schedulers_or_containers() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert get_waiting_reason(_pod(conditions=[unscheduled])) == "Unschedulable: 0/3 nodes"
    creating = _container(waiting={"reason": "ContainerCreating"})
    assert get_waiting_reason(_pod(containerStatuses=creating)) == "ContainerCreating"
    assert not _pod(containerStatuses=creating).has_started
    assert _pod(containerStatuses=_container(running={})).has_started
    events = [{"reason": "FailedMount", "message": 'secret "login" not found'}, {"reason": "Scheduled"}]
    assert get_mount_error(events) == 'secret "login" not found'


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": _container(running={})}, None),
        (
            {"containerStatuses": _container(terminated={"exitCode": 0, "reason": "Completed", "message": DIGEST})},
            (0, "Completed"),
        ),
        ({"containerStatuses": _container(terminated={"exitCode": 137, "reason": "OOMKilled"})}, (137, "OOMKilled")),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, (137, "Evicted")),
    ],
)
def test_termination_is_read_from_pod_status(status, expected) -> None:
    termination = get_termination(_pod(**status))
    assert (None if termination is None else (termination.exit_code, termination.reason)) == expected
