from __future__ import annotations

import copy
from typing import Any

import pytest

from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.names import WORKER
from kfp_mindspore.msjob.pod_patch import PodPatch, patch_template

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
