from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.api.crd import build_job_schema
from kfp_mindspore.msjob.api.manifest import to_field_name
from kfp_mindspore.msjob.api.names import WORKER
from kfp_mindspore.msjob.build import JobOptions, PodPatch, patch_template, to_env_vars, to_resource_requirements
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.options import from_json, list_options, to_json
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
        "env": [
            {"name": "SEED", "value": "42"},
            {"name": "EMPTY", "value": ""},
            {"name": "KFP_MINDSPORE_POD_DEVICE", "value": "GPU"},
        ],
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


def test_queue_and_its_priority_are_labels_beside_others() -> None:
    job = build_msjob("digits", command=["python"], queue="research", queue_priority="urgent", labels={"app": "digits"})
    assert job.metadata["labels"] == {
        "app": "digits",
        "kueue.x-k8s.io/queue-name": "research",
        "kueue.x-k8s.io/priority-class": "urgent",
    }


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
        ({"queue": "Research"}, "queue"),
        ({"device": "gpu"}, "device"),
        ({"device": "GPU", "resources": {"npu": 1}}, "device"),
        ({"queue": "a" * 64}, "queue"),
        ({"queue_priority": "very urgent"}, "queue_priority"),
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
        ({"npu": 1}, {"requests": {"huawei.com/Ascend910": "1"}, "limits": {"huawei.com/Ascend910": "1"}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}}),
        ({"requests": {"gpu": 1}}, {"requests": {"gpu": 1}}),
    ],
)
def test_resources(resources: Any, wire: dict[str, Any]) -> None:
    assert to_resource_requirements(resources) == wire


def test_requests_and_limits_are_two_mappings() -> None:
    wire = to_resource_requirements({"cpu": 1})
    assert wire["requests"] is not wire["limits"], "YAML would write an alias"


A, B, A2 = {"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "3"}
SECRET = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "secret"}}}
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
MOUNT = {"name": "data", "mountPath": "/data"}
GPU = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
EVERYTHING = PodPatch(
    env=[A, SECRET],
    volumes=[DATA],
    volume_mounts=[MOUNT],
    resources={"limits": {"cpu": "1"}},
    node_selector={"zone": "a"},
    tolerations=[GPU],
    affinity={"nodeAffinity": {}},
    labels={"team": "a"},
    annotations={"why": "b"},
    image_pull_secrets=[{"name": "registry"}],
    service_account_name="trainer",
    security_context={"runAsUser": 1000},
)


def build_template() -> dict[str, Any]:
    return build_msjob("digits", command=["true"], image="example.com/train:1").ms_replica_specs[WORKER].template


@pytest.mark.parametrize(
    ("field", "first", "second", "expected"),
    [
        ("env", [A], [B], [A, B]),
        ("env", [A, B], [A2], [A2, B]),
        ("env", [A], [{**SECRET, "name": "A"}], [{**SECRET, "name": "A"}]),
        ("volumes", [DATA], [{"name": "data", "emptyDir": {}}], [{"name": "data", "emptyDir": {}}]),
        ("volume_mounts", [MOUNT], [{**MOUNT, "mountPath": "/other"}], [MOUNT, {**MOUNT, "mountPath": "/other"}]),
        ("volume_mounts", [MOUNT], [{**MOUNT, "name": "x"}], [{**MOUNT, "name": "x"}]),
        (
            "resources",
            {"limits": {"cpu": "1", "memory": "1Gi"}},
            {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}},
            {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2"}},
        ),
        ("node_selector", {"a": "1"}, {"a": "2", "b": "1"}, {"a": "2", "b": "1"}),
        ("tolerations", [GPU], [GPU, {"key": "npu"}], [GPU, {"key": "npu"}]),
        ("labels", {"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}),
        ("image_pull_secrets", [{"name": "a"}], [{"name": "b"}], [{"name": "a"}, {"name": "b"}]),
        ("service_account_name", "a", "", "a"),
        ("service_account_name", "a", "b", "b"),
        ("security_context", {"runAsUser": 1}, {"fsGroup": 2}, {"runAsUser": 1, "fsGroup": 2}),
    ],
)
def test_merge_keeps_both_and_prefers_second(field: str, first: Any, second: Any, expected: Any) -> None:
    assert getattr(PodPatch(**{field: first}).merge(PodPatch(**{field: second})), field) == expected
    template = patch_template(patch_template(build_template(), PodPatch(**{field: first})), PodPatch(**{field: second}))
    assert template == patch_template(build_template(), PodPatch(**{field: expected}))


def test_every_field_reaches_its_place() -> None:
    template = patch_template(build_template(), EVERYTHING)
    assert template["metadata"] == {"labels": {"team": "a"}, "annotations": {"why": "b"}}
    (container,) = template["spec"].pop("containers")
    assert template["spec"] == {
        "volumes": [DATA],
        "nodeSelector": {"zone": "a"},
        "tolerations": [GPU],
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "trainer",
        "securityContext": {"runAsUser": 1000},
    }
    assert container == {
        **build_template()["spec"]["containers"][0],
        "env": [A, SECRET],
        "volumeMounts": [MOUNT],
        "resources": {"limits": {"cpu": "1"}},
    }


def test_patched_job_is_valid() -> None:
    job = build_msjob("digits", command=["true"]).to_dict()
    worker = job["spec"]["msReplicaSpecs"][WORKER]
    worker["template"] = patch_template(worker["template"], EVERYTHING)
    MSJob.from_dict(job)


def test_other_containers_are_unchanged() -> None:
    template = build_template()
    sidecar = {"name": "sidecar", "image": "example.com/sidecar:1"}
    template["spec"]["containers"].append(sidecar)
    assert patch_template(template, EVERYTHING)["spec"]["containers"][1] == sidecar


def test_arguments_are_not_changed() -> None:
    template = build_template()
    template["spec"]["containers"][0]["env"] = [B]
    before = copy.deepcopy(template)
    patched = patch_template(template, EVERYTHING)
    assert template == before
    patched["spec"]["containers"][0]["env"][0]["value"] = "changed"
    patched["spec"]["volumes"][0]["name"] = "changed"
    assert (A["value"], DATA["name"]) == ("1", "data")


def test_empty_patch_changes_nothing() -> None:
    assert patch_template(build_template(), PodPatch()) == build_template()
    assert EVERYTHING.merge(PodPatch()) == PodPatch().merge(EVERYTHING) == EVERYTHING


TEXTS = st.dictionaries(st.text(min_size=1), st.text())
OPTIONS = st.builds(
    JobOptions,
    workers=st.integers(1, 64),
    backoff_limit=st.integers(0, 9),
    active_deadline_seconds=st.none() | st.integers(1),
    clean_pod_policy=st.sampled_from(["Running", "All", "None"]),
    restart_policy=st.sampled_from(["OnFailure", "ExitCode"]),
    resources=st.just({}) | st.just({"limits": {"cpu": "1"}}),
    env=TEXTS,
    labels=TEXTS,
)


@given(OPTIONS)
def test_options_round_trip_through_json(options: JobOptions) -> None:
    assert from_json(JobOptions, to_json(options), source="OPTIONS") == options


@given(OPTIONS, OPTIONS)
def test_merge_replaces_values_and_merges_mappings(first: JobOptions, second: JobOptions) -> None:
    merged = first.merge(vars(second))

    assert merged.workers == second.workers
    assert merged.env == {**first.env, **second.env}
    assert merged.active_deadline_seconds == (second.active_deadline_seconds or first.active_deadline_seconds)
    assert merged.merge(vars(second)) == merged
    assert merged.merge({}) == merged


def test_numbers_of_pipelines_become_texts() -> None:
    assert JobOptions(env={"A": 1.0, "B": True}).env == {"A": "1", "B": "true"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers: must be an integer ≥ 1, got 0"),
        ({"restart_policy": "Sometimes"}, "restart_policy: must be one of Always, OnFailure, Never, ExitCode"),
        ({"empty_dirs": {"shm": "1Gi"}}, "empty_dirs: must be absolute paths, got 'shm'"),
        ({"env": ["A=1"]}, r"env: must be a dict, got \['A=1'\]"),
    ],
)
def test_invalid_option_is_refused_when_it_is_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JobOptions(**changes)


def test_limits_are_those_of_the_manifest() -> None:
    """Entry and server accept the same values, except for the default of `restart_policy`."""
    spec = build_job_schema()["properties"]["spec"]["properties"]
    worker = spec["msReplicaSpecs"]["additionalProperties"]["properties"]
    fields = {**spec["runPolicy"]["properties"], "workers": worker["replicas"]}
    fields["restartPolicy"] = worker["restartPolicy"]
    compared = 0
    for entry in list_options(JobOptions):
        if (field := fields.get(to_field_name(entry.name))) is None:
            continue
        compared += 1
        assert {word: field[word] for word in ("minimum", "enum") if word in field} == dict(entry.limits)
        assert field.get("default") == ("Never" if entry.name == "restart_policy" else entry.default)
    assert compared == 6
