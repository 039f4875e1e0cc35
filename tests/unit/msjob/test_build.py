from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.build import to_env_vars, to_resource_requirements
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.settings import PLACEHOLDER_IMAGE


def test_least() -> None:
    job = build_msjob("digits", command=["python", "train.py"])
    assert job.to_dict() == {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "digits", "namespace": "default"},
        "spec": {
            "msReplicaSpecs": {
                "Worker": {
                    "replicas": 1,
                    "restartPolicy": "ExitCode",
                    "template": {
                        "spec": {
                            "containers": [
                                {"name": "mindspore", "image": PLACEHOLDER_IMAGE, "command": ["python", "train.py"]}
                            ]
                        }
                    },
                }
            },
            "runPolicy": {"backoffLimit": 3},
        },
    }


def test_everything() -> None:
    job = build_msjob(
        "digits",
        command=("python", "train.py"),
        args=("--epochs", "2"),
        image="example.com/train:1",
        workers=4,
        namespace="team",
        env={"SEED": "42", "EMPTY": ""},
        restart_policy="ExitCode",
        backoff_limit=0,
        active_deadline_seconds=600,
        ttl_seconds_after_finished=0,
        clean_pod_policy="None",
        resources={"cpu": 2, "gpu": 1},
        working_dir="src",
    )
    amounts = {"cpu": "2", "nvidia.com/gpu": "1"}
    worker = job.ms_replica_specs["Worker"]
    assert worker.container == {
        "name": "mindspore",
        "image": "example.com/train:1",
        "command": ["python", "train.py"],
        "args": ["--epochs", "2"],
        "env": [{"name": "SEED", "value": "42"}, {"name": "EMPTY", "value": ""}],
        "resources": {"requests": amounts, "limits": amounts},
        "workingDir": "src",
    }
    assert (job.namespace, job.workers, worker.restart_policy) == ("team", 4, "ExitCode")
    assert job.to_dict()["spec"]["runPolicy"] == {
        "activeDeadlineSeconds": 600,
        "backoffLimit": 0,
        "cleanPodPolicy": "None",
        "ttlSecondsAfterFinished": 0,
    }
    validate_msjob(job)
    assert MSJob.from_yaml(job.to_yaml()) == job


CONTAINER = "spec.msReplicaSpecs.Worker.template.spec.containers[0]"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "Digits"}, "metadata.name"),
        ({"namespace": "a/b"}, "metadata.namespace"),
        ({"workers": 0}, "workers"),
        ({"restart_policy": "Sometimes"}, "restart_policy"),
        ({"backoff_limit": -1}, "backoff_limit"),
        ({"active_deadline_seconds": 0}, "active_deadline_seconds"),
        ({"ttl_seconds_after_finished": -1}, "ttl_seconds_after_finished"),
        ({"clean_pod_policy": "all"}, "clean_pod_policy"),
        ({"command": "python train.py"}, f"{CONTAINER}.command"),
        ({"command": ["python", 3]}, f"{CONTAINER}.command[1]"),
        ({"args": "--epochs 2"}, f"{CONTAINER}.args"),
        ({"args": ["--epochs", 2]}, f"{CONTAINER}.args[1]"),
        ({"env": [{"value": "1"}]}, f"{CONTAINER}.env[0].name"),
        ({"env": [{"name": "A", "value": 1}]}, f"{CONTAINER}.env[0].value"),
    ],
)
def test_wrong_option_and_wrong_field_are_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        validate_msjob(build_msjob(**{"name": "digits", "command": ["python"], **arguments}))
    (error,) = caught.value.errors
    assert error.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("env", "wire"),
    [
        ({"A": "1", "B": 2, "C": 0.5}, [("A", "1"), ("B", "2"), ("C", "0.5")]),
        ([{"name": "A", "value": "1"}], [("A", "1")]),
        (({"name": "A", "value": "1"},), [("A", "1")]),
    ],
)
def test_env(env: Any, wire: list[tuple[str, str]]) -> None:
    assert to_env_vars(env) == [{"name": name, "value": value} for name, value in wire]


@pytest.mark.parametrize(
    ("resources", "wire"),
    [
        ({"memory": "1Gi"}, {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
        ({"gpu": 2}, {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}}),
        ({"requests": {"gpu": 1}}, {"requests": {"gpu": 1}}),
    ],
)
def test_resources(resources: Any, wire: dict[str, Any]) -> None:
    assert to_resource_requirements(resources) == wire


def test_requests_and_limits_are_two_mappings() -> None:
    wire = to_resource_requirements({"cpu": 1})
    assert wire["requests"] is not wire["limits"], "YAML would write an alias"
