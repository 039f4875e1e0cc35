"""The order of a controller's requests, and its reactions to refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.api.kueue import RESOURCE_FLAVORS, WORKLOADS
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import PodView
from kfp_mindspore.operator.decisions.services import build_endpoint_slice, build_service
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.operator.process.controller import Controller
from kfp_mindspore.operator.process.metrics import OperatorMetrics
from kfp_mindspore.operator.process.progress import ProgressReader
from kfp_mindspore.operator.process.recorder import Recorder
from kfp_mindspore.operator.process.store import JobCache, JobKey
from kfp_mindspore.operator.process.workqueue import WorkQueue
from tests.support.kube.fake_api_server import FakeApiServer, respond_once
from tests.support.kube.simulated_cluster import make_job

KEY = JobKey("team", "digits")
COLLECTION = MSJOBS.get_path("team")

Process = Callable[..., list[str]]


@pytest.fixture
def store(server: FakeApiServer) -> JobCache:
    """The store of a new job that the server has."""
    job = make_job(2)
    del job["metadata"]["resourceVersion"]
    store = JobCache()
    store.put_job(server.put(COLLECTION, job))
    return store


@pytest.fixture
def options() -> OperatorOptions:
    return OperatorOptions()


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics()


@pytest.fixture
def process(run: Callable[..., Any], store: JobCache, options: OperatorOptions, metrics: OperatorMetrics) -> Process:
    """A function that processes the queue until it is empty, and returns the messages of errors."""

    def process_queue() -> list[str]:
        errors: list[str] = []

        async def work(client: AsyncClient) -> None:
            queue = WorkQueue()
            recorder = Recorder(client, metrics)
            progress = ProgressReader(client, store, queue.add)
            controller = Controller(client, store, queue, recorder, progress, metrics, options)
            recording = asyncio.create_task(recorder.run())
            queue.add(KEY)
            while len(queue):
                key, _ = await queue.get()
                try:
                    await controller.process(key)
                except KfpMindSporeError as error:
                    errors.append(error.message)
                queue.done(key)
            await recorder.drain()
            recording.cancel()

        run(work)
        return errors

    return process_queue


def list_writes(server: FakeApiServer, *ignored: str) -> list[str]:
    """Return the requests that write, in short, without those of some words."""
    words = [f"{item.method} {item.path.partition('/namespaces/team/')[2]}" for item in server.requests]
    return [word for word in words if not word.startswith("GET") and not any(item in word for item in ignored)]


def test_status_is_written_before_actions_and_events(server: FakeApiServer, store: JobCache, process: Process) -> None:
    version = store.observe(KEY)[1]
    assert process() == []
    writes = list_writes(server)
    assert writes[0] == "PUT msjobs/digits/status"
    assert sorted(writes[1:]) == ["POST events", *["POST pods"] * 3, "POST services"]
    (document,) = [item.body for item in server.requests if item.method == "PUT"]
    assert document["metadata"]["resourceVersion"] == str(version), "the observed resourceVersion, not a newer one"
    assert document["spec"] == make_job(2)["spec"]
    assert store.states["Created"] == 1


def test_changed_jobs_are_reconciled_again(server: FakeApiServer, process: Process) -> None:
    job = server.find(COLLECTION, "digits")
    assert job is not None
    server.put(COLLECTION, {**job, "spec": {**job["spec"], "runPolicy": {"suspend": True}}})
    assert process() == []
    assert list_writes(server, "events") == ["PUT msjobs/digits/status"] * 2
    stored = server.find(COLLECTION, "digits")
    assert stored is not None
    assert stored["status"]["state"] == "Suspended"


@pytest.mark.parametrize(("exit_code", "hangs"), [(76, 1), (1, 0)])
def test_gang_that_a_hung_worker_ended_is_counted(
    server: FakeApiServer, store: JobCache, process: Process, metrics: OperatorMetrics, exit_code: int, hangs: int
) -> None:
    def set_state(state: dict[str, Any], *names: str) -> None:
        for name in names:
            pod = server.find(PODS.get_path("team"), name)
            assert pod is not None
            phase = "Running" if "running" in state else "Failed"
            container = {"name": "mindspore", "ready": phase == "Running", "restartCount": 0, "state": state}
            status = {"phase": phase, "podIP": "10.244.0.5", "containerStatuses": [container]}
            store.put(PODS, server.put(PODS.get_path("team"), {**pod, "status": status}))

    assert process() == []
    set_state({"running": {}}, "digits-scheduler-0", "digits-worker-0", "digits-worker-1")
    assert process() == []
    set_state({"terminated": {"exitCode": exit_code, "reason": "Error"}}, "digits-worker-1")
    assert process() == []
    assert store.states["Restarting"] == 1
    assert f"msjob_hangs_total {hangs:.1f}" in metrics.render().decode()


def test_deleted_jobs_are_dropped(server: FakeApiServer, store: JobCache, process: Process) -> None:
    server.remove(COLLECTION, "digits")
    assert process() == []
    assert list_writes(server) == ["PUT msjobs/digits/status"]
    assert store.states.total() == 0


def test_objects_deleted_at_once_are_not_waited_for(server: FakeApiServer, store: JobCache, process: Process) -> None:
    """No watch event follows a deletion that the response reports as complete."""
    job = MSJob.from_dict(make_job(2))
    service = build_service(job, 2222)
    service["spec"]["clusterIP"] = "10.96.0.1"
    stale = build_endpoint_slice(job, PodView("digits-scheduler-0", "gone"), "10.244.0.5", 2222)
    for resource, document in ((SERVICES, service), (ENDPOINT_SLICES, stale)):
        store.put(resource, server.put(resource.get_path("team"), document))
    assert process() == []
    assert list_writes(server, "status", "events") == [
        "DELETE endpointslices/digits-scheduler-0",
        *["POST pods"] * 3,
    ]


def test_refused_pods_are_reported_in_status(server: FakeApiServer, store: JobCache, process: Process) -> None:
    server.faults.append(respond_once(403, method="POST", path="/pods", reason="Forbidden"))
    (error,) = process()
    assert "injected fault 403" in error
    statuses = [item.body["status"] for item in server.requests if item.method == "PUT"]
    assert statuses[0]["state"] == "Created"
    assert "injected fault 403" in statuses[-1]["waiting"]
    assert store.states["Created"] == 1


@pytest.mark.parametrize(
    ("status", "message", "state", "reason"),
    [
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', "Failed", None),
        (422, 'Pod "x" is invalid: spec.containers[0].image: Required value', "Failed", None),
        (
            403,
            'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2',
            "Created",
            "QuotaExceeded",
        ),
        (
            403,
            'pods "x" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1',
            "Created",
            "QuotaTooSmall",
        ),
        (403, 'pods "x" is forbidden: failed quota: q: must specify limits.cpu', "Created", "Forbidden"),
        (403, 'pods "x" is forbidden: error looking up service account team/train: not found', "Created", "Forbidden"),
        (400, 'admission webhook "validate.example.com" denied the request: no team label', "Created", "Rejected"),
        (403, 'admission webhook "validate.example.com" denied the request: no team label', "Created", "Rejected"),
        (500, "Internal error occurred: failed calling webhook", "Created", None),
    ],
)
def test_permanent_refusals_fail_job(
    server: FakeApiServer, process: Process, status: int, message: str, state: str, reason: str | None
) -> None:
    server.faults.append(respond_once(status, method="POST", path="/pods", message=message))
    assert len(process()) == 1
    statuses = [item.body["status"] for item in server.requests if item.method == "PUT"]
    assert statuses[-1]["state"] == state
    assert statuses[-1].get("waitingReason") == reason
    if state == "Failed":
        assert message in statuses[-1]["conditions"][-1]["message"]


def test_names_held_by_foreign_objects_are_reported(server: FakeApiServer, store: JobCache, process: Process) -> None:
    server.put("/api/v1/namespaces/team/pods", {"metadata": {"namespace": "team", "name": "digits-worker-0"}})
    assert process() == []
    status = json.loads(store.entries[KEY].job)["status"]
    assert status["waiting"].startswith("pod digits-worker-0: exists and does not belong to this job")


@pytest.mark.parametrize(("exit_code", "state"), [(0, "Succeeded"), (1, "Failed")])
def test_terminal_status_has_last_progress(
    server: FakeApiServer, store: JobCache, process: Process, exit_code: int, state: str
) -> None:
    """The training ends right after its last report, before the operator has read its log once."""
    job = server.find(COLLECTION, "digits")
    assert job is not None
    job["spec"]["msReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    store.put_job(server.put(COLLECTION, job))
    assert process() == []
    server.write("digits-worker-0", 'T KFP_MINDSPORE_PROGRESS {"epoch": 1}', 'T KFP_MINDSPORE_PROGRESS {"epoch": 2}')
    pod = server.find(PODS.get_path("team"), "digits-worker-0")
    assert pod is not None
    ended = {"name": "mindspore", "state": {"terminated": {"exitCode": exit_code}}}
    phase = "Succeeded" if exit_code == 0 else "Failed"
    store.put(
        PODS,
        server.put(PODS.get_path("team"), {**pod, "status": {"phase": phase, "containerStatuses": [ended]}}),
    )
    server.requests.clear()
    assert process() == []
    statuses = [item.body["status"] for item in server.requests if item.method == "PUT"]
    assert [(status["state"], status["progress"]["epoch"]) for status in statuses] == [(state, 2)]
    reads = [item for item in server.requests if item.path.endswith("/log")]
    assert len(reads) == 1, "read once, whatever is reconciled after the end"


def test_job_without_readable_log_ends(server: FakeApiServer, store: JobCache, process: Process) -> None:
    assert process() == []
    job = server.find(COLLECTION, "digits")
    assert job is not None
    job["spec"]["runPolicy"] = {"activeDeadlineSeconds": 1}
    job["status"]["startTime"] = "2026-01-01T00:00:00Z"
    store.put_job(server.put(COLLECTION, job))
    assert process() == []
    assert store.states["Failed"] == 1


def queue_job(server: FakeApiServer, store: JobCache) -> None:
    """Give the job a queue."""
    job = server.find(COLLECTION, "digits")
    assert job is not None
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    store.put_job(server.put(COLLECTION, {**job, "metadata": {**job["metadata"], "labels": labels}}))


def admit(server: FakeApiServer, flavor: str) -> dict[str, Any]:
    """Admit the job's Workload, as Kueue does."""
    workload = server.find(WORKLOADS.get_path("team"), "msjob-digits")
    assert workload is not None
    time = "2026-01-31T12:00:00Z"
    made = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": time}
        for kind in ("QuotaReserved", "Admitted")
    ]
    assignments = [
        {"name": item["name"], "count": item["count"], "flavors": {"cpu": flavor}}
        for item in workload["spec"]["podSets"]
    ]
    status = {"conditions": made, "admission": {"clusterQueue": "all", "podSetAssignments": assignments}}
    return server.put(WORKLOADS.get_path("team"), {**workload, "status": status})


def find_job_status(server: FakeApiServer) -> dict[str, Any]:
    job = server.find(COLLECTION, "digits")
    assert job is not None
    status: dict[str, Any] = job["status"]
    return status


KUEUE = pytest.mark.parametrize("options", [OperatorOptions(kueue=True)])


@KUEUE
def test_queued_job_is_started_by_admission(server: FakeApiServer, store: JobCache, process: Process) -> None:
    queue_job(server, store)
    assert process() == []
    assert list_writes(server, "status", "events") == ["POST workloads"]
    server.put(RESOURCE_FLAVORS.get_path(), {"metadata": {"name": "npu"}, "spec": {"nodeLabels": {"npu": "910b"}}})
    store.put(WORKLOADS, admit(server, "npu"))
    assert process() == []
    assert list_writes(server, "status", "events") == ["POST workloads", "POST services", *["POST pods"] * 3]
    pod = server.find(PODS.get_path("team"), "digits-worker-0")
    assert pod is not None
    assert pod["spec"]["nodeSelector"] == {"npu": "910b"}


@KUEUE
def test_missing_flavor_is_in_status(server: FakeApiServer, store: JobCache, process: Process) -> None:
    queue_job(server, store)
    process()
    store.put(WORKLOADS, admit(server, "npu"))
    assert process() == []
    assert "resourceflavors.kueue.x-k8s.io 'npu'" in find_job_status(server)["waiting"]
    writes = len(server.requests)
    assert process() == []
    assert [item.method for item in server.requests[writes:]] == ["GET"], "no write while it is missing"


@KUEUE
def test_workload_that_has_changed_is_read_again(server: FakeApiServer, store: JobCache, process: Process) -> None:
    queue_job(server, store)
    process()
    admitted = admit(server, "npu")
    changed = server.put(WORKLOADS.get_path("team"), {**admitted, "status": {**admitted["status"], "newer": "x"}})
    store.put(WORKLOADS, admitted)
    process()
    stored = server.find(WORKLOADS.get_path("team"), "msjob-digits")
    assert stored is not None
    assert stored["status"]["newer"] == "x"
    assert int(stored["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])
    assert [item["type"] for item in stored["status"]["conditions"]][-1] == "PodsReady"


@KUEUE
def test_missing_kueue_is_in_status(server: FakeApiServer, store: JobCache, process: Process) -> None:
    queue_job(server, store)
    server.faults.append(respond_once(404, path="/workloads", times=100))
    assert all("does not know workloads.kueue.x-k8s.io" in error for error in process())
    assert "does not know workloads.kueue.x-k8s.io" in find_job_status(server)["waiting"]


@KUEUE
def test_foreign_workload_is_in_status(server: FakeApiServer, store: JobCache, process: Process) -> None:
    queue_job(server, store)
    server.put(WORKLOADS.get_path("team"), {"metadata": {"namespace": "team", "name": "msjob-digits"}})
    assert process() == []
    assert find_job_status(server)["waitingReason"] == "NameTaken"
    server.remove(WORKLOADS.get_path("team"), "msjob-digits")
    assert process() == []
    assert find_job_status(server)["waitingReason"] == "Queued"
