"""A step's own pod: run, Workflow and deletion; and the exit task that deletes the run's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob import build_msjob
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.steps.handover.step_pod import RUN_LABEL, StepPod, read_step_pod
from kfp_mindspore.steps.launch.stop import stop_jobs
from tests.support.kube.fake_api_server import FakeApiServer, respond_once

POD = "digits-x7k-train-1"
RUN = "0123-run"
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "digits-x7k", "uid": "uid-workflow"}


@pytest.fixture(autouse=True)
def environment(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "config", namespace="team")))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KFP_POD_NAME", POD)


def put_pod(api: FakeApiServer, condition: dict[str, str] | None = None, **metadata: Any) -> None:
    owners = [{"kind": "Node", "uid": "uid-node"}, {**WORKFLOW, "controller": True}]
    containers = [{"name": "wait", "image": "argo"}, {"name": "main", "image": "registry/step:1"}]
    given = {"name": POD, "namespace": "team", "labels": {RUN_LABEL: RUN}, "ownerReferences": owners, **metadata}
    status = {"phase": "Running", "conditions": [condition] if condition else []}
    api.put(PODS.get_path("team"), {"metadata": given, "spec": {"containers": containers}, "status": status})


def put_job(api: FakeApiServer, name: str, state: str = "", **metadata: Any) -> None:
    document = build_msjob(name, command=["python"], image="a", namespace="team").to_dict()
    document["metadata"].update(uid=f"uid-{name}", creationTimestamp="2026-01-31T12:00:00Z", **metadata)
    if state:
        condition = {"type": state, "status": "True", "reason": "Because", "message": state}
        document["status"] = {"state": state, "conditions": [condition]}
    api.put(MSJOBS.get_path("team"), document)


def read_pod() -> StepPod:
    pod = read_step_pod(Cluster())
    assert pod is not None
    return pod


def test_pod_names_run_workflow_and_image(api: FakeApiServer) -> None:
    put_pod(api)
    assert read_pod() == StepPod("team", RUN, WORKFLOW, "registry/step:1", name=POD)


def test_pod_without_run_has_no_owner(api: FakeApiServer) -> None:
    put_pod(api, labels=None, ownerReferences=None)
    assert read_pod() == StepPod("team", "", None, "registry/step:1", name=POD)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "KFP_POD_NAME is not set"), ("other", "Pod other cannot be read, so a job of this step outlives")],
)
def test_unreadable_pod_is_explained(
    name: str, message: str, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", name)
    assert read_step_pod(Cluster()) is None
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"labels": {RUN_LABEL: RUN}}, True),
        ({"ownerReferences": [{"uid": "uid-node"}, {"uid": "uid-workflow"}]}, True),
        ({"labels": {RUN_LABEL: "another"}, "ownerReferences": [{"uid": "uid-workflow"}]}, True),
        ({"labels": {RUN_LABEL: "another"}}, False),
        ({"ownerReferences": [{"uid": "another"}]}, False),
        ({"labels": None, "ownerReferences": None}, False),
        ({}, False),
    ],
)
def test_object_belongs_to_run_by_label_or_owner(metadata: dict[str, Any], expected: bool) -> None:
    assert StepPod("team", RUN, WORKFLOW).has_run(metadata) is expected


@pytest.mark.parametrize("metadata", [{"labels": {RUN_LABEL: ""}}, {"labels": {}, "ownerReferences": [{}]}])
def test_objects_without_run_do_not_belong_to_pod_without_run(metadata: dict[str, Any]) -> None:
    assert not StepPod("team").has_run(metadata)


@pytest.mark.parametrize(("status", "expected"), [("True", True), ("False", False)])
def test_pod_that_kubelet_evicts_is_drained(api: FakeApiServer, status: str, expected: bool) -> None:
    put_pod(api, {"type": "DisruptionTarget", "status": status, "reason": "TerminationByKubelet"})
    assert read_pod().is_deleted() is expected


def test_pod_is_deleted_when_marked_or_gone(api: FakeApiServer) -> None:
    put_pod(api)
    pod = read_pod()
    assert not pod.is_deleted()
    api.faults.append(respond_once(403, reason="Forbidden", times=1))
    assert not pod.is_deleted(), "unknown"
    put_pod(api, deletionTimestamp="2026-01-31T12:00:00Z")
    assert pod.is_deleted()
    api.remove(PODS.get_path("team"), POD)
    assert pod.is_deleted()


def test_unfinished_jobs_of_run_are_deleted(api: FakeApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    put_pod(api)
    put_job(api, "new", labels={RUN_LABEL: RUN})
    put_job(api, "running", "Running", ownerReferences=[WORKFLOW])
    put_job(api, "finished", "Succeeded", labels={RUN_LABEL: RUN})
    put_job(api, "failed", "Failed", labels={RUN_LABEL: RUN})
    put_job(api, "other", "Running", labels={RUN_LABEL: "another"})
    put_job(api, "alone", "Running")
    assert stop_jobs() == 2
    found = [
        name
        for name in ("new", "running", "finished", "failed", "other", "alone")
        if api.find(MSJOBS.get_path("team"), name)
    ]
    assert found == ["finished", "failed", "other", "alone"]
    output = capsys.readouterr().out
    assert [name for name in ("new", "running", "other") if f"job {name}: unfinished" in output] == ["new", "running"]


def test_no_job_is_deleted_without_run(api: FakeApiServer) -> None:
    """A pod that cannot be read has no run: all jobs stay."""
    put_job(api, "running", "Running", labels={RUN_LABEL: RUN})
    assert stop_jobs() == 0
    assert api.find(MSJOBS.get_path("team"), "running")
