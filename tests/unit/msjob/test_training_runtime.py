from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED, SINGLE, build_training_runtime
from tests.support.controllers.definitions import read_schema


def read_pod(runtime: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pod spec and the trainer's variables; a variable from a field is its path."""
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    variables = pod["containers"][0]["env"]
    return pod, {item["name"]: item.get("value") or item["valueFrom"]["fieldRef"]["fieldPath"] for item in variables}


@pytest.mark.parametrize("name", [DISTRIBUTED, SINGLE])
@pytest.mark.parametrize("checkpoints", ["", "claim:data", "s3://bucket/path"])
def test_runtimes_are_valid_for_trainer(name: str, checkpoints: str) -> None:
    options = JobOptions(image="a/b@sha256:1", resources={"cpu": 2}, service_account="trainer")
    runtime = build_training_runtime(name, options, checkpoints=checkpoints)
    jsonschema.validate(runtime, read_schema("ClusterTrainingRuntime", "v1alpha1"))


def test_runtime_is_as_kubeflow_sdk_reads_it() -> None:
    """The SDK lists runtimes with this label, and sends a function to the container `node` of this step."""
    runtime = build_training_runtime(DISTRIBUTED, JobOptions(image="a/b@sha256:1"))
    assert runtime["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "mindspore"}
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1, "jax": {}}
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = read_pod(runtime)[0]["containers"]
    assert (container["name"], container["image"]) == ("node", "a/b@sha256:1")
    assert "command" not in container


def test_only_one_node_runtime_refuses_more() -> None:
    variables = {name: read_pod(build_training_runtime(name, JobOptions()))[1] for name in (DISTRIBUTED, SINGLE)}
    assert "MS_WORKER_NUM" not in variables[DISTRIBUTED]
    assert variables[SINGLE]["MS_WORKER_NUM"] == "1"


def test_gang_restarts_by_exit_codes_as_msjob_does() -> None:
    runtime = build_training_runtime(DISTRIBUTED, JobOptions(backoff_limit=5), grace_seconds=90)
    job_set = runtime["spec"]["template"]["spec"]
    assert job_set["failurePolicy"]["maxRestarts"] == 5
    job = job_set["replicatedJobs"][0]["template"]["spec"]
    disrupted, exited = job["podFailurePolicy"]["rules"]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (exited["action"], exited["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    assert {137, 143} < set(exited["onExitCodes"]["values"])
    pod = read_pod(runtime)[0]
    assert (job["backoffLimit"], pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == (0, "Never", 90)


@pytest.mark.parametrize(
    ("reason", "message", "action"),
    [
        ("PodFailurePolicy", "Container node for pod a/b failed with exit code 1 matching FailJob rule", "FailJobSet"),
        (
            "PodFailurePolicy",
            "Pod a/b has condition DisruptionTarget matching FailJob rule",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        # JobSet's default is a restart that counts.
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit", None),
    ],
)
def test_job_failures_have_msjobs_consequences(reason: str, message: str, action: str | None) -> None:
    """The messages are Kubernetes 1.34's; JobSet applies the first rule that matches."""
    runtime = build_training_runtime(DISTRIBUTED, JobOptions())
    rules = runtime["spec"]["template"]["spec"]["failurePolicy"]["rules"]
    matching = [
        rule["action"]
        for rule in rules
        if reason in rule["onJobFailureReasons"]
        and any(re.search(pattern, message) for pattern in rule.get("onJobFailureMessagePatterns", [""]))
    ]
    assert next(iter(matching), None) == action


@pytest.mark.parametrize(
    ("checkpoints", "directory", "mounted"),
    [
        ("claim:data", "/mnt/checkpoints", "$(KFP_MINDSPORE_TRAINJOB)"),
        ("s3://bucket/path/", "s3://bucket/path/$(KFP_MINDSPORE_TRAINJOB)", None),
    ],
)
def test_each_trainjob_has_checkpoint_directory(checkpoints: str, directory: str, mounted: str | None) -> None:
    pod, variables = read_pod(build_training_runtime(DISTRIBUTED, JobOptions(), checkpoints=checkpoints))
    assert variables["KFP_MINDSPORE_CHECKPOINT_DIR"] == directory
    # Kubernetes expands variables that stand before.
    assert next(iter(variables)) == "KFP_MINDSPORE_TRAINJOB"
    mounts = pod["containers"][0].get("volumeMounts", [])
    assert [item["subPathExpr"] for item in mounts] == ([mounted] if mounted else [])


@pytest.mark.parametrize("checkpoints", ["data", "claim:", "claim:a/b", "/mnt", "volume:a"])
def test_checkpoints_elsewhere_are_refused(checkpoints: str) -> None:
    with pytest.raises(ValidationError, match="checkpoints: must be claim:NAME or a URI"):
        build_training_runtime(DISTRIBUTED, JobOptions(), checkpoints=checkpoints)


def test_command_writes_runtimes_with_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trainer", "runtime", "--image", "a/b@sha256:1", "--max-restarts", "0"]) == 0
    output, errors = capsys.readouterr()
    documents = list(yaml.safe_load_all(output))
    names = [DISTRIBUTED, SINGLE, "mindspore-one-node", "mindspore-one-node"]
    assert [item["metadata"]["name"] for item in documents] == names
    assert "a/b@sha256:1" in output
    assert errors == ""
    assert run(["trainer", "runtime", "--name", SINGLE]) == 0
    output, errors = capsys.readouterr()
    assert "image: has no digest" in errors
    assert output.count("mindspore-one-node") == 3
    assert run(["trainer", "runtime", "--name", DISTRIBUTED]) == 0
    assert "mindspore-one-node" not in capsys.readouterr().out
