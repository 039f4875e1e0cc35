"""KubernetesBackend behind MSJobClient, against a small API server that fails in the ways of a cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import AlreadyExistsError, NotFoundError, UserError, ValidationError, WaitTimeoutError
from kfp_mindspore.kube.errors import ConflictError, NotInstalledError, UnreachableError
from kfp_mindspore.kube.resources import EVENTS, PODS
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient, build_msjob, run_job
from kfp_mindspore.msjob.failure import JobFailedError
from kfp_mindspore.msjob.names import MSJOBS
from kfp_mindspore.msjob.options import JobOptions
from tests.support.fake_api_server import FakeApiServer, reset_once, respond_once

NAMESPACE = "team"
JOBS_PATH = MSJOBS.get_path(NAMESPACE)
PODS_PATH = PODS.get_path(NAMESPACE)
SECONDS = 120.0
UID = "uid-job"


class Town:
    """One namespace of the small server: a job, and pods that a test starts, ends and replaces."""

    def __init__(self, server: FakeApiServer, client: MSJobClient) -> None:
        self.server = server
        self.client = client
        self.workers: list[threading.Thread] = []

    def put_job(self, state: str = "", name: str = "job", uid: str = UID, **status: Any) -> None:
        document = build_msjob(name, command=["python"], image="a", namespace=NAMESPACE).to_dict()
        document["metadata"].update(uid=uid, creationTimestamp="2026-01-31T12:00:00Z")
        if state:
            condition = {"type": state, "status": "True", "reason": "Because", "message": f"It is {state}."}
            document["status"] = {"state": state, "conditions": [condition], **status}
        self.server.put(JOBS_PATH, document)

    def put_pod(self, index: int, uid: str, exit_code: int | None = None, *, started: bool = True, **more: Any) -> str:
        name = f"job-worker-{index}"
        state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
        if started:
            state = {"running": {}} if exit_code is None else {"terminated": {"exitCode": exit_code, "reason": "Error"}}
        phase = "Pending" if not started else "Running" if exit_code is None else "Failed" if exit_code else "Succeeded"
        labels = {
            "training.kubeflow.org/job-name": "job",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": str(index),
        }
        self.server.put(
            PODS_PATH,
            {
                "metadata": {"name": name, "uid": uid, "labels": labels, "ownerReferences": [{"uid": UID}], **more},
                "spec": {"nodeName": "node-1"},
                "status": {"phase": phase, "containerStatuses": [{"name": "mindspore", "state": state}]},
            },
        )
        return name

    def later(self, *steps: Callable[[], object]) -> None:
        def run() -> None:
            for step in steps:
                step()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.workers.append(thread)

    def watches(self, word: str, count: int = 1) -> Callable[[], None]:
        """Return a step that waits until a collection is watched."""

        def wait() -> None:
            deadline = time.monotonic() + SECONDS
            while sum(f"/{word}" in item.path and "watch" in item.query for item in self.server.requests) < count:
                assert time.monotonic() < deadline
                time.sleep(0.005)

        return wait


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.delenv("KFP_MINDSPORE_BACKEND", raising=False)
    with FakeApiServer().serve() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", namespace=NAMESPACE)
        yield Town(server, MSJobClient(KubernetesBackend(kubeconfig=kubeconfig)))


RUNTIME_PATH = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
TRAIN_PATH = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"


def test_jobs_are_submitted_as_installed_kinds(town: Town) -> None:
    town.server.kinds["/apis/trainer.kubeflow.org/v1alpha1"] = [
        {"name": "trainjobs", "kind": "TrainJob", "namespaced": True},
        {"name": "clustertrainingruntimes", "kind": "ClusterTrainingRuntime", "namespaced": False},
    ]
    town.client.create_job(build(workers=2, namespace=NAMESPACE), job_kind="TrainJob")
    job, runtime = town.server.find(TRAIN_PATH, "job"), town.server.find(RUNTIME_PATH, "team-job")
    assert job is not None
    assert job["spec"]["runtimeRef"]["name"] == "team-job"
    assert runtime is not None
    with pytest.raises(NotInstalledError, match="this cluster cannot run MPIJob"):
        town.client.create_job(build("other"), job_kind="MPIJob")


def build(name: str = "job", **options: Any) -> Any:
    return build_msjob(name, command=["python", "train.py"], **{"image": "example.com/train:1", **options})


def test_jobs_are_created_in_namespace_of_context(town: Town) -> None:
    town.client.create_job({**build().to_dict(), "metadata": {"name": "job", "resourceVersion": "9", "uid": "old"}})
    stored = town.server.find(JOBS_PATH, "job")
    assert stored is not None
    assert (stored["metadata"]["namespace"], "status" in stored) == (NAMESPACE, False)
    assert "resourceVersion" not in town.server.requests[-1].body["metadata"]
    assert town.server.requests[-1].query["fieldValidation"] == "Strict"
    assert town.client.get_job("job").name == "job"
    assert [job.name for job in town.client.list_jobs()] == ["job"]
    with pytest.raises(AlreadyExistsError, match="exists already in namespace team") as refused:
        town.client.create_job(build(namespace=NAMESPACE))
    assert "job delete job --backend kubernetes --kubeconfig" in refused.value.hint


def test_dry_run_stores_nothing(town: Town) -> None:
    town.client.create_job(build(namespace=NAMESPACE), dry_run=True)
    assert town.server.requests[-1].query["dryRun"] == "All"
    assert town.client.list_jobs() == []


def test_interrupted_create_is_resolved(town: Town) -> None:
    town.server.faults.append(reset_once(method="POST", after=True))
    town.client.create_job(build(namespace=NAMESPACE))
    town.server.faults[:] = [reset_once(method="POST")]
    town.client.create_job(build("second", namespace=NAMESPACE))
    assert [job.name for job in town.client.list_jobs()] == ["job", "second"]
    # Another client's job of this name is not adopted.
    town.server.faults[:] = [reset_once(method="POST")]
    with pytest.raises(AlreadyExistsError):
        town.client.create_job(build(namespace=NAMESPACE))


@pytest.mark.parametrize("image", ["kfp-mindspore.invalid/python:placeholder", ""])
def test_jobs_need_image(town: Town, image: str) -> None:
    with pytest.raises(
        ValidationError,
        match=r"Worker.*'mindspore' must have an image on a cluster\nGive it one: in its YAML, or by --image",
    ):
        town.client.create_job(build(image=image))
    assert town.server.requests == []


def test_wait_uses_watch(town: Town) -> None:
    town.put_job()
    town.later(
        town.watches("msjobs"),
        lambda: town.put_job("Created"),
        lambda: town.put_job("Running"),
        lambda: town.put_job("Succeeded", restarts=2, workers="1/1"),
    )
    seen: list[str] = []
    job = town.client.wait_for_job_conditions(
        "job", wait_timeout=SECONDS, callback=lambda job: seen.append(job.status.state if job.status else "")
    )
    assert (seen[0], seen[-1]) == ("", "Succeeded")
    assert job.status is not None
    assert job.to_dict()["status"]["restarts"] == 2
    # One list and one watch for any duration.
    assert town.server.count("GET") == 2


@pytest.mark.parametrize("by", ["reset", "half", "error", "end"])
def test_wait_survives_broken_watches(town: Town, by: str) -> None:
    town.put_job("Running")
    town.later(
        town.watches("msjobs"),
        lambda: town.server.break_streams(by),
        lambda: town.server.faults.append(respond_once(503, times=2)),
        lambda: town.put_job("Succeeded"),
    )
    town.client.wait_for_job_conditions("job", wait_timeout=SECONDS)


def test_wait_timeout(town: Town) -> None:
    town.put_job("Running")
    with pytest.raises(WaitTimeoutError, match=r"job job is Running, not Succeeded, after 0\.2 s"):
        town.client.wait_for_job_conditions("job", wait_timeout=0.2)
    with pytest.raises(NotFoundError, match="job other does not exist in namespace team"):
        town.client.wait_for_job_conditions("other", wait_timeout=SECONDS)


@pytest.mark.parametrize("again", [False, True])
def test_wait_for_deleted_job(town: Town, again: bool) -> None:
    town.put_job("Running")

    def replace() -> None:
        town.server.remove(JOBS_PATH, "job")
        if again:
            town.put_job("Running", uid="another")

    town.later(town.watches("msjobs"), replace)
    with pytest.raises(NotFoundError, match="it was deleted"):
        town.client.wait_for_job_conditions("job", wait_timeout=SECONDS)


def test_failures_have_last_lines_of_first_pod(town: Town) -> None:
    failure = {"pod": "job-worker-1", "exitCode": 1, "reason": "Error", "message": "m", "log": ["kept"], "attempt": 0}
    town.put_job("Failed", failure=failure)
    with pytest.raises(JobFailedError, match=r"job job failed: It is Failed\.") as gone:
        town.client.wait_for_job_conditions("job", wait_timeout=SECONDS)
    assert (gone.value.log, gone.value.hint) == (("kept",), "")
    town.put_pod(1, "uid-1", 1)
    town.server.write("job-worker-1", "2026-01-31T12:00:00Z one", "2026-01-31T12:00:01Z two", end=True)
    with pytest.raises(JobFailedError) as there:
        town.client.wait_for_job_conditions("job", wait_timeout=SECONDS)
    assert there.value.log == ("one", "two")
    assert "The whole log: kfp-mindspore job logs job --backend kubernetes" in there.value.hint


def test_logs_are_followed_across_restarts(town: Town) -> None:
    town.put_job("Running")
    server = town.server

    def play() -> None:
        town.watches("pods")()
        for attempt in (0, 1):
            for index in (0, 1):
                server.logs.pop(f"job-worker-{index}", None)
                town.put_pod(index, f"uid-{attempt}-{index}", started=False)
            for index in (0, 1):
                pod = f"job-worker-{index}"
                server.write(pod, f"2026-01-31T12:0{attempt}:00Z {attempt}/{index} begins")
                town.put_pod(index, f"uid-{attempt}-{index}")
            while sum(item.path.endswith("/log") for item in server.requests) < 2 * (attempt + 1):
                time.sleep(0.005)
            for index in (0, 1):
                town.put_pod(index, f"uid-{attempt}-{index}", 137 if attempt == 0 else 0)
                server.write(f"job-worker-{index}", f"2026-01-31T12:0{attempt}:01Z {attempt}/{index} ends", end=True)
            if attempt == 0:
                town.put_job("Restarting")
                for index in (0, 1):
                    server.remove(PODS_PATH, f"job-worker-{index}")
        town.put_job("Succeeded")

    town.later(play)
    lines = list(town.client.backend.follow_logs("job", NAMESPACE, lambda pod: True, timeout=SECONDS))
    for index in (0, 1):
        assert [line for pod, line in lines if pod == f"job-worker-{index}"] == [
            f"{attempt}/{index} {word}" for attempt in (0, 1) for word in ("begins", "ends")
        ]


def test_logs_of_finished_job_and_of_one_pod(town: Town) -> None:
    town.put_job("Succeeded")
    for index in (0, 1):
        town.put_pod(index, f"uid-{index}", 0)
        report = f'KFP_MINDSPORE_PROGRESS {{"percentage": {index}}}'
        town.server.write(f"job-worker-{index}", f"2026-01-31T12:00:00Z {report}", end=True)
    # Left by a job of the same name before it.
    town.put_pod(2, "uid-2", 0, ownerReferences=[{"uid": "before"}])
    follow = town.client.backend.follow_logs
    assert list(follow("job", NAMESPACE, lambda pod: pod.index == 1)) == [("job-worker-1", "progress: 1 %")]
    logs, _ = town.client.get_job_logs("job", replica_type="worker")
    assert logs == {"job-worker-0": "progress: 0 %\n", "job-worker-1": "progress: 1 %\n"}


def test_following_ends_with_job_timeout_and_reader(town: Town) -> None:
    town.put_job("Running")
    town.put_pod(0, "uid-0")
    town.server.write("job-worker-0", "2026-01-31T12:00:00Z one")
    follow = town.client.backend.follow_logs
    with pytest.raises(WaitTimeoutError, match="job job has not ended after 1 s"):
        list(follow("job", NAMESPACE, lambda pod: True, timeout=1))
    lines = follow("job", NAMESPACE, lambda pod: True)
    assert next(lines) == ("job-worker-0", "one")
    lines.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + SECONDS
    while any(thread.name == "logs of job" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lines = follow("job", NAMESPACE, lambda pod: True)
    assert next(lines) == ("job-worker-0", "one")
    town.server.remove(JOBS_PATH, "job")
    town.put_pod(0, "uid-0", 143)
    town.server.write("job-worker-0", "2026-01-31T12:00:01Z two", end=True)
    assert list(lines) == [("job-worker-0", "two")]
    with pytest.raises(NotFoundError, match="job missing does not exist"):
        list(follow("missing", NAMESPACE, lambda pod: True))


def test_pods_are_listed_in_order_with_waiting_reasons(town: Town) -> None:
    town.put_job("Running")
    town.put_pod(10, "uid-10")
    town.put_pod(2, "uid-2", 137)
    pod = town.server.find(PODS_PATH, town.put_pod(0, "uid-0", started=False))
    assert pod is not None
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    town.server.put(PODS_PATH, pod)
    pods = town.client.get_job_pods("job")
    assert [(pod.index, pod.phase, pod.exit_code, pod.reason) for pod in pods] == [
        (0, "Pending", None, "ImagePullBackOff"),
        (2, "Failed", 137, "Error"),
        (10, "Running", None, None),
    ]
    assert town.client.get_job_pod_names("job", replica_index=2) == ["job-worker-2"]


def test_events_of_job_and_its_pods(town: Town) -> None:
    town.put_job("Running")
    for number, (name, uid) in enumerate(
        [("job", UID), ("job", "before"), ("job-worker-0", "p"), ("job-worker-0-x", "q"), ("other", "o")]
    ):
        event = {"involvedObject": {"name": name, "uid": uid}, "reason": f"R{number}", "message": "m", "count": 2}
        time_ = {"lastTimestamp": f"2026-01-31T12:00:{59 - number}Z"}
        town.server.put(EVENTS.get_path(NAMESPACE), {"metadata": {"name": f"e{number}"}, **event, **time_})
    events = town.client.backend.list_events("job", NAMESPACE)
    assert [(event.object, event.reason, event.message) for event in events] == [
        ("job-worker-0", "R2", "m (2 times)"),
        ("job", "R0", "m (2 times)"),
    ]


def test_updates_are_retried_on_conflict(town: Town) -> None:
    town.put_job("Running")
    town.server.faults.append(respond_once(409, method="PATCH", reason="Conflict", times=3))
    job = town.client.get_job("job")
    job.metadata["labels"] = {"a": "b"}
    town.client.update_job(job, "job")
    patch = town.server.requests[-1].body
    assert set(patch) == {"metadata", "spec"}
    assert patch["metadata"] == {"labels": {"a": "b"}}
    assert town.client.get_job("job").metadata["labels"] == {"a": "b"}
    town.server.faults[:] = [respond_once(409, method="PATCH", reason="Conflict", times=100)]
    with pytest.raises(ConflictError):
        town.client.update_job({"spec": {"successPolicy": "AllWorkers"}}, "job")
    town.server.faults.clear()
    with pytest.raises(NotFoundError, match="job other does not exist"):
        town.client.update_job({"spec": {}}, "other")


def test_updates_use_stored_replica_keys(town: Town) -> None:
    document = build().to_dict()
    document["spec"]["msReplicaSpecs"] = {"worker": document["spec"]["msReplicaSpecs"]["Worker"]}
    town.server.put(JOBS_PATH, document)
    town.client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"replicas": 4}}}}, "job")
    assert town.client.get_job("job").workers == 4
    stored = town.server.find(JOBS_PATH, "job")
    assert stored is not None
    assert set(stored["spec"]["msReplicaSpecs"]) == {"worker"}


def test_deletion_waits_for_pods(town: Town) -> None:
    town.put_job("Running")
    town.put_pod(0, "uid-0")
    town.put_pod(1, "uid-1", ownerReferences=[{"uid": "another"}])
    # Its pod is deleted after the watch's event of the job.
    town.later(town.watches("pods"), lambda: town.server.remove(PODS_PATH, "job-worker-0"))
    town.client.delete_job("job")
    body = next(item.body for item in town.server.requests if item.method == "DELETE")
    assert (body["propagationPolicy"], body["preconditions"]) == ("Foreground", {"uid": UID})
    assert town.server.find(PODS_PATH, "job-worker-1") is not None
    with pytest.raises(NotFoundError, match="job job does not exist"):
        town.client.delete_job("job")


def test_deletion_with_grace_period(town: Town) -> None:
    town.put_job("Running")
    town.put_pod(0, "uid-0")
    town.client.delete_job("job", delete_options={"gracePeriodSeconds": 2})
    body = next(item.body for item in town.server.requests if item.method == "DELETE" and "pods" in item.path)
    assert (body["gracePeriodSeconds"], body["preconditions"]) == (2, {"uid": "uid-0"})


def test_foreground_run_is_followed_and_deleted(town: Town) -> None:
    def play() -> None:
        while town.server.find(JOBS_PATH, "job") is None:
            time.sleep(0.005)
        town.put_job("Running", uid=town.server.find(JOBS_PATH, "job")["metadata"]["uid"])  # type: ignore[index]

    town.later(play)
    with pytest.raises(WaitTimeoutError):
        run_job(town.client, build(namespace=NAMESPACE), timeout=0.5)
    assert town.client.list_jobs() == []


def test_commands_in_hints_are_complete(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KubernetesBackend("other", kubeconfig=town.client.backend.kubeconfig)  # type: ignore[attr-defined]
    words = f"kfp-mindspore job get a --backend kubernetes --kubeconfig {backend.kubeconfig}"
    assert backend.name_command("get", "a", namespace="other") == f"{words} --namespace other"
    assert backend.name_command("get", "a", namespace=NAMESPACE) == words
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    assert "--backend" not in backend.name_command("get", "a")


def test_unreachable_server(tmp_path: Path, town: Town) -> None:
    town.server.stop()
    backend = KubernetesBackend(kubeconfig=town.client.backend.kubeconfig)  # type: ignore[attr-defined]
    with pytest.raises(UnreachableError, match="cannot be reached"):
        MSJobClient(backend).list_jobs()
    with pytest.raises(UserError, match="no cluster is configured"):
        MSJobClient(KubernetesBackend(kubeconfig=tmp_path / "none")).list_jobs()


def test_pipeline_step_launches_its_job_on_cluster(
    town: Town, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kfp_mindspore.steps.launch.job import launch_job

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(town.client.backend.kubeconfig))  # type: ignore[attr-defined]
    # The job of an earlier attempt of the step.
    town.put_job("Failed", uid="before")
    town.put_pod(0, "uid-before", 1, ownerReferences=[{"uid": "before"}])

    def play() -> None:
        while (job := town.server.find(JOBS_PATH, "job")) is None or job["metadata"]["uid"] == "before":
            time.sleep(0.005)
        owner = {"ownerReferences": [{"uid": job["metadata"]["uid"]}]}
        town.server.write("job-worker-0", "2026-01-31T12:00:00Z epoch 1")
        town.put_job("Running", uid=job["metadata"]["uid"])
        town.put_pod(0, "uid-0", **owner)
        town.put_pod(0, "uid-0", 0, **owner)
        town.server.write("job-worker-0", "2026-01-31T12:00:01Z epoch 2", end=True)
        town.put_job("Succeeded", uid=job["metadata"]["uid"])

    town.later(lambda: town.server.remove(PODS_PATH, "job-worker-0"), play)
    launch_job("/job", ["python"], JobOptions(image="example.com/train:1"), name="job", namespace=NAMESPACE)
    assert capsys.readouterr().out.splitlines()[1:] == ["epoch 1", "epoch 2"]


@pytest.mark.parametrize(
    ("pod", "methods"),
    [
        (None, ["DELETE"]),
        ({}, ["GET", "DELETE"]),
        ({"deletionTimestamp": "2026-01-31T12:00:00Z"}, ["GET"]),
    ],
    ids=["without a pod", "terminated run", "drained node"],
)
def test_sigterm_deletes_job_unless_pod_is_deleted(
    pod: dict[str, Any] | None, methods: list[str], town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.steps.launch.job import launch_job

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(town.client.backend.kubeconfig))  # type: ignore[attr-defined]
    if pod is not None:
        town.server.put(PODS_PATH, {"metadata": {"name": "step"}, "spec": {}})
        monkeypatch.setenv("KFP_POD_NAME", "step")
    before: list[int] = []

    def terminate() -> None:
        town.watches("pods")()
        while not any(item.method == "PATCH" for item in town.server.requests):
            time.sleep(0.005)
        if pod is not None:
            town.server.put(PODS_PATH, {"metadata": {"name": "step", **pod}, "spec": {}})
        before.append(len(town.server.requests))
        os.kill(os.getpid(), signal.SIGTERM)

    town.later(terminate)
    with pytest.raises(SystemExit) as raised:
        launch_job("/job", ["python"], JobOptions(image="example.com/train:1"), name="job", namespace=NAMESPACE)
    assert raised.value.code == 143
    after = [item for item in town.server.requests[before[0] :] if "watch" not in item.query]
    assert [item.method for item in after] == methods
    assert (town.server.find(JOBS_PATH, "job") is None) == ("DELETE" in methods)


@pytest.mark.parametrize("is_readable", [True, False])
def test_job_is_owned_by_workflow_of_step(
    is_readable: bool, town: Town, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kfp_mindspore.steps.handover.step_pod import StepPod, read_step_pod

    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}, {**workflow, "controller": True}]
    metadata = {"name": "step", "labels": {"pipeline/runid": "7"}, "ownerReferences": owners}
    containers = [{"name": "wait", "image": "argoexec"}, {"name": "main", "image": "example.com/step:1"}]
    town.server.put(PODS_PATH, {"metadata": metadata, "spec": {"containers": containers}})
    if not is_readable:
        town.server.faults.append(respond_once(403, reason="Forbidden"))
    monkeypatch.setenv("KFP_POD_NAME", "step")
    pod = read_step_pod(town.client.backend.cluster)  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    if is_readable:
        assert pod == StepPod(NAMESPACE, "7", workflow, "example.com/step:1", name="step")
        assert printed == ""
        assert pod.has_run({"labels": {"pipeline/runid": "7"}})
        assert pod.has_run({"ownerReferences": [{"uid": "w"}]})
        assert not pod.has_run({"labels": {"pipeline/runid": "8"}, "ownerReferences": [{"uid": "x"}]})
    else:
        assert pod is None
        assert len(printed.splitlines()) == 1
        assert "Pod step cannot be read, so a job of this step outlives a deleted run" in printed


@pytest.mark.parametrize(
    ("image", "variable", "has_step_image", "expected"),
    [
        ("example.com/given:1", "example.com/env:1", False, "example.com/given:1"),
        ("", "example.com/env:1", False, "example.com/env:1"),
        ("", "", False, "example.com/step:1"),
        ("", "example.com/env:1", True, "example.com/step:1"),
    ],
)
def test_image_of_workers(
    image: str, variable: str, has_step_image: bool, expected: str, town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.steps.launch.job import launch_job

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(town.client.backend.kubeconfig))  # type: ignore[attr-defined]
    monkeypatch.setenv("KFP_POD_NAME", "step")
    monkeypatch.setenv("KFP_MINDSPORE_IMAGE", variable)
    spec = {"containers": [{"name": "main", "image": "example.com/step:1"}]}
    town.server.put(PODS_PATH, {"metadata": {"name": "step"}, "spec": spec})
    found: list[str] = []

    def finish() -> None:
        while (job := town.server.find(JOBS_PATH, "job")) is None:
            time.sleep(0.005)
        found.append(job["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"])
        town.put_job("Succeeded", uid=job["metadata"]["uid"])

    town.later(finish)
    launch_job(
        "/job",
        ["python"],
        JobOptions(image=image),
        name="job",
        namespace=NAMESPACE,
        has_step_image=has_step_image,
    )
    assert found == [expected]
