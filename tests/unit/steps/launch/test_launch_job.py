"""launch_job on a small API server: which job a step submits, adopts, replaces and deletes."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import AlreadyExistsError, ProcessFailedError
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.manifest import parse_lease
from kfp_mindspore.msjob.api.names import LEASE_ANNOTATION, MSJOBS
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.steps.handover.job_name import make_job_name
from kfp_mindspore.steps.handover.step_pod import RUN_LABEL
from kfp_mindspore.steps.launch.job import StepJobs, launch_job
from tests.support.kube.fake_api_server import FakeApiServer, respond_once

POD = "digits-x7k-train-1"
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "digits-x7k", "uid": "uid-workflow"}
ROOT = "s3://bucket/run/train/uuid"

pytestmark = pytest.mark.timeout(120)


class Launcher:
    """A step in the namespace `team` that launches jobs, which an operator ends at once."""

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api

    def launch(self, state: str = "Succeeded", root: str = ROOT, workers: int = 1, **arguments: Any) -> str:
        """Launch a job that gets a state."""
        given: dict[str, Any] = {"namespace": "team", **arguments}
        options = JobOptions(workers=workers, **given.pop("options", {}))
        name = given.get("name") or make_job_name(root)
        stopped = threading.Event()
        operator = threading.Thread(target=self.end_jobs, args=(name, given["namespace"], state, stopped))
        operator.start()
        try:
            return launch_job(root, ["python", "train.py"], options, **given)
        finally:
            stopped.set()
            operator.join()

    def end_jobs(self, name: str, namespace: str, state: str, stopped: threading.Event) -> None:
        path = MSJOBS.get_path(namespace)
        while not stopped.wait(0.01):
            document = self.api.find(path, name)
            if document is not None and not document.get("status"):
                condition = {"type": state, "status": "True", "reason": "Because", "message": f"It has {state}."}
                self.api.put(path, {**document, "status": {"state": state, "conditions": [condition]}})

    def count(self, method: str, word: str = "msjobs") -> int:
        return self.api.count(method, word)

    def get(self, name: str = "", namespace: str = "team") -> dict[str, Any]:
        found = self.api.find(MSJOBS.get_path(namespace), name or make_job_name(ROOT))
        assert found is not None
        return found


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    with FakeApiServer().serve() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config", namespace="team")))
        monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
        monkeypatch.setenv("KFP_POD_NAME", POD)
        metadata = {"name": POD, "namespace": "team", "labels": {RUN_LABEL: "0123"}, "ownerReferences": [WORKFLOW]}
        containers = [{"name": "main", "image": "registry/step:1"}]
        server.put(PODS.get_path("team"), {"metadata": metadata, "spec": {"containers": containers}})
        yield Launcher(server)


def test_job_belongs_to_run_and_has_image_of_step(launcher: Launcher) -> None:
    assert launcher.launch() == make_job_name(ROOT)
    job = launcher.get()
    assert job["metadata"]["labels"][RUN_LABEL] == "0123"
    assert job["metadata"]["ownerReferences"] == [WORKFLOW]
    assert LEASE_ANNOTATION in job["metadata"]["annotations"]
    template = job["spec"]["msReplicaSpecs"]["Worker"]["template"]
    assert template["spec"]["containers"][0]["image"] == "registry/step:1"


def test_job_has_mlflow_credentials_of_step(launcher: Launcher) -> None:
    token = {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mlflow", "key": "token"}}}
    other = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}}
    pod = launcher.api.find(PODS.get_path("team"), POD)
    assert pod is not None
    pod["spec"]["containers"][0]["env"] = [{"name": "MLFLOW_RUN_ID", "value": "7"}, token, other]
    launcher.api.put(PODS.get_path("team"), pod)
    for namespace, expected in (("team", [token]), ("training", None)):
        launcher.launch(namespace=namespace)
        template = launcher.get(namespace=namespace)["spec"]["msReplicaSpecs"]["Worker"]["template"]
        assert template["spec"]["containers"][0].get("env") == expected


def test_job_in_another_namespace_has_no_owner(launcher: Launcher) -> None:
    """Kubernetes deletes objects whose owner is in another namespace."""
    launcher.launch(namespace="training")
    metadata = launcher.get(namespace="training")["metadata"]
    assert not metadata.get("ownerReferences")
    assert metadata["labels"][RUN_LABEL] == "0123"


def test_retry_adopts_job_that_succeeded(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.launch() == launcher.launch()
    assert launcher.count("POST") == 1
    assert capsys.readouterr().out.count("Adopting job") == 1


@pytest.mark.parametrize(
    ("first", "second"), [({"state": "Failed"}, {}), ({}, {"workers": 2})], ids=["failed", "another spec"]
)
def test_retry_replaces_job(launcher: Launcher, first: dict[str, Any], second: dict[str, Any]) -> None:
    if first:
        with pytest.raises(ProcessFailedError):
            launcher.launch(**first)
    else:
        launcher.launch()
    launcher.launch(**second)
    assert (launcher.count("POST"), launcher.count("DELETE")) == (2, 1)
    assert launcher.get()["spec"]["msReplicaSpecs"]["Worker"]["replicas"] == second.get("workers", 1)


def test_step_warns_of_queue_that_starts_no_job(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    launcher.launch(options={"queue": "research"})
    assert launcher.get()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    printed = capsys.readouterr().out
    assert printed.startswith("Warning: queue 'research': namespace team has no such LocalQueue")


def test_preempted_job_is_followed_through_its_queue(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    path, name, stopped = MSJOBS.get_path("team"), make_job_name(ROOT), threading.Event()
    preempted = 'queue "research": Preempted to accommodate a workload due to prioritization in the ClusterQueue'
    waiting = {"waiting": preempted, "waitingReason": "Queued"}

    def preempt() -> None:
        while not any(item.path == path and "watch" in item.query for item in launcher.api.requests):
            if stopped.wait(0.01):
                return
        for state, further in (("Running", {}), ("Suspended", waiting), ("Running", {}), ("Succeeded", {})):
            condition = {"type": state, "status": "True", "reason": "Because", "message": f"It has {state}."}
            document = launcher.api.find(path, name)
            launcher.api.put(path, {**(document or {}), "status": {"conditions": [condition], **further}})

    operator = threading.Thread(target=preempt)
    operator.start()
    try:
        assert launch_job(ROOT, ["python"], JobOptions(queue="research"), namespace="team") == name
    finally:
        stopped.set()
        operator.join()
    assert capsys.readouterr().out.count(f"Waiting: {preempted}") == 1


def test_finished_job_is_deleted_on_request(launcher: Launcher) -> None:
    launcher.launch(options={"delete_after_done": True})
    assert launcher.api.find(MSJOBS.get_path("team"), make_job_name(ROOT)) is None


def test_running_job_of_another_step_is_kept(launcher: Launcher) -> None:
    launcher.launch(name="shared")
    job = launcher.get("shared")
    running = {"state": "Running", "conditions": [{"type": "Running", "status": "True", "reason": "Because"}]}
    launcher.api.put(MSJOBS.get_path("team"), {**job, "status": running})
    with pytest.raises(AlreadyExistsError, match="shared"):
        launcher.launch(name="shared", root="s3://bucket/other/train/uuid")
    assert launcher.count("DELETE") == 0
    assert launcher.get("shared")["metadata"]["uid"] == job["metadata"]["uid"]


@pytest.mark.parametrize("is_forbidden", [False, True])
def test_drained_launcher_deletes_its_pod_and_leaves_its_job_for_an_hour(
    launcher: Launcher, is_forbidden: bool
) -> None:
    api = launcher.api
    jobs = StepJobs(ROOT, "team")
    submitted = jobs.submit(jobs.build(make_job_name(ROOT), ["python", "train.py"], JobOptions()))
    pod = api.find(PODS.get_path("team"), POD)
    assert pod is not None
    pod["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    api.put(PODS.get_path("team"), pod)
    if is_forbidden:
        api.faults.append(respond_once(403, method="DELETE", reason="Forbidden", times=1))
    jobs.cancel([submitted], SystemExit(143))
    assert (api.find(PODS.get_path("team"), POD) is None) is not is_forbidden
    lease = parse_lease(launcher.get()["metadata"]["annotations"][LEASE_ANNOTATION])
    assert lease is not None
    left = lease - datetime.datetime.now(datetime.timezone.utc)
    assert left > datetime.timedelta(minutes=59)
