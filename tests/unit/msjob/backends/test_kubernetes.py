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
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.failure import JobFailedError
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED, build_training_runtime
from tests.support.kube.fake_api_server import FakeApiServer, reset_once, respond_once

NAMESPACE = "team"
JOBS_PATH = MSJOBS.get_path(NAMESPACE)
PODS_PATH = PODS.get_path(NAMESPACE)
SECONDS = 120.0
UID = "uid-job"


class SimulatedJob:
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
def simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedJob]:
    monkeypatch.delenv("KFP_MINDSPORE_BACKEND", raising=False)
    with FakeApiServer().serve() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", namespace=NAMESPACE)
        yield SimulatedJob(server, MSJobClient(KubernetesBackend(kubeconfig=kubeconfig)))


RUNTIME_PATH = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
TRAIN_PATH = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"


def test_jobs_are_submitted_as_installed_kinds(simulation: SimulatedJob) -> None:
    simulation.server.kinds["/apis/trainer.kubeflow.org/v1alpha1"] = [
        {"name": "trainjobs", "kind": "TrainJob", "namespaced": True},
        {"name": "clustertrainingruntimes", "kind": "ClusterTrainingRuntime", "namespaced": False},
    ]
    simulation.client.create_job(build(workers=2, namespace=NAMESPACE), job_kind="TrainJob")
    job, runtime = simulation.server.find(TRAIN_PATH, "job"), simulation.server.find(RUNTIME_PATH, "team-job")
    assert job is not None
    assert job["spec"]["runtimeRef"]["name"] == "team-job"
    assert runtime is not None
    with pytest.raises(NotInstalledError, match="this cluster cannot run MPIJob"):
        simulation.client.create_job(build("other"), job_kind="MPIJob")


def test_trainjobs_share_runtime_of_cluster(simulation: SimulatedJob) -> None:
    simulation.server.kinds["/apis/trainer.kubeflow.org/v1alpha1"] = [
        {"name": "trainjobs", "kind": "TrainJob", "namespaced": True},
        {"name": "clustertrainingruntimes", "kind": "ClusterTrainingRuntime", "namespaced": False},
    ]
    simulation.client.backend.cluster.apply(
        build_training_runtime(DISTRIBUTED, JobOptions(image="example.com/train:1"))
    )
    simulation.client.create_job(build(workers=2, namespace=NAMESPACE), job_kind="TrainJob")
    job = simulation.server.find(TRAIN_PATH, "job")
    assert job is not None
    assert job["spec"]["runtimeRef"]["name"] == DISTRIBUTED
    # Nothing that deleting the job would leave in the cluster.
    assert simulation.server.find(RUNTIME_PATH, "team-job") is None
    with pytest.raises(
        ValidationError, match=r"workingDir: cannot be set with the .*\n.*job convert FILE --to TrainJob"
    ):
        simulation.client.create_job(build("other", workers=2, working_dir="/data"), job_kind="TrainJob")
    assert simulation.server.find(TRAIN_PATH, "other") is None


def build(name: str = "job", **options: Any) -> Any:
    return build_msjob(name, command=["python", "train.py"], **{"image": "example.com/train:1", **options})


def test_jobs_are_created_in_namespace_of_context(simulation: SimulatedJob) -> None:
    simulation.client.create_job(
        {**build().to_dict(), "metadata": {"name": "job", "resourceVersion": "9", "uid": "old"}}
    )
    stored = simulation.server.find(JOBS_PATH, "job")
    assert stored is not None
    assert (stored["metadata"]["namespace"], "status" in stored) == (NAMESPACE, False)
    assert "resourceVersion" not in simulation.server.requests[-1].body["metadata"]
    assert simulation.server.requests[-1].query["fieldValidation"] == "Strict"
    assert simulation.client.get_job("job").name == "job"
    assert [job.name for job in simulation.client.list_jobs()] == ["job"]
    with pytest.raises(AlreadyExistsError, match="exists already in namespace team") as refused:
        simulation.client.create_job(build(namespace=NAMESPACE))
    assert "job delete job --backend kubernetes --kubeconfig" in refused.value.hint


def test_dry_run_stores_nothing(simulation: SimulatedJob) -> None:
    simulation.client.create_job(build(namespace=NAMESPACE), dry_run=True)
    assert simulation.server.requests[-1].query["dryRun"] == "All"
    assert simulation.client.list_jobs() == []


def test_interrupted_create_is_resolved(simulation: SimulatedJob) -> None:
    simulation.server.faults.append(reset_once(method="POST", after=True))
    simulation.client.create_job(build(namespace=NAMESPACE))
    simulation.server.faults[:] = [reset_once(method="POST")]
    simulation.client.create_job(build("second", namespace=NAMESPACE))
    assert [job.name for job in simulation.client.list_jobs()] == ["job", "second"]
    # Another client's job of this name is not adopted.
    simulation.server.faults[:] = [reset_once(method="POST")]
    with pytest.raises(AlreadyExistsError):
        simulation.client.create_job(build(namespace=NAMESPACE))


@pytest.mark.parametrize("image", ["kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", ""])
def test_jobs_need_image(simulation: SimulatedJob, image: str) -> None:
    with pytest.raises(
        ValidationError,
        match=r"Worker.*'mindspore' must have an image on a cluster\nGive it one: in its YAML, or by --image",
    ):
        simulation.client.create_job(build(image=image))
    assert simulation.server.requests == []


def test_wait_uses_watch(simulation: SimulatedJob) -> None:
    simulation.put_job()
    simulation.later(
        simulation.watches("msjobs"),
        lambda: simulation.put_job("Created"),
        lambda: simulation.put_job("Running"),
        lambda: simulation.put_job("Succeeded", restarts=2, workers="1/1"),
    )
    seen: list[str] = []
    job = simulation.client.wait_for_job_conditions(
        "job", wait_timeout=SECONDS, callback=lambda job: seen.append(job.status.state if job.status else "")
    )
    assert (seen[0], seen[-1]) == ("", "Succeeded")
    assert job.status is not None
    assert job.to_dict()["status"]["restarts"] == 2
    # One list and one watch for any duration.
    assert simulation.server.count("GET") == 2


@pytest.mark.parametrize("by", ["reset", "half", "error", "end"])
def test_wait_survives_broken_watches(simulation: SimulatedJob, by: str) -> None:
    simulation.put_job("Running")
    simulation.later(
        simulation.watches("msjobs"),
        lambda: simulation.server.break_streams(by),
        lambda: simulation.server.faults.append(respond_once(503, times=2)),
        lambda: simulation.put_job("Succeeded"),
    )
    simulation.client.wait_for_job_conditions("job", wait_timeout=SECONDS)


def test_wait_timeout(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    with pytest.raises(WaitTimeoutError, match=r"job job is Running, not Succeeded, after 0\.2 s"):
        simulation.client.wait_for_job_conditions("job", wait_timeout=0.2)
    with pytest.raises(NotFoundError, match="job other does not exist in namespace team"):
        simulation.client.wait_for_job_conditions("other", wait_timeout=SECONDS)


@pytest.mark.parametrize("again", [False, True])
def test_wait_for_deleted_job(simulation: SimulatedJob, again: bool) -> None:
    simulation.put_job("Running")

    def replace() -> None:
        simulation.server.remove(JOBS_PATH, "job")
        if again:
            simulation.put_job("Running", uid="another")

    simulation.later(simulation.watches("msjobs"), replace)
    with pytest.raises(NotFoundError, match="it was deleted"):
        simulation.client.wait_for_job_conditions("job", wait_timeout=SECONDS)


def test_failures_have_last_lines_of_first_pod(simulation: SimulatedJob) -> None:
    failure = {"pod": "job-worker-1", "exitCode": 1, "reason": "Error", "message": "m", "log": ["kept"], "attempt": 0}
    simulation.put_job("Failed", failure=failure)
    with pytest.raises(JobFailedError, match=r"job job failed: It is Failed\.") as gone:
        simulation.client.wait_for_job_conditions("job", wait_timeout=SECONDS)
    assert (gone.value.log, gone.value.hint) == (("kept",), "")
    simulation.put_pod(1, "uid-1", 1)
    simulation.server.write("job-worker-1", "2026-01-31T12:00:00Z one", "2026-01-31T12:00:01Z two", end=True)
    with pytest.raises(JobFailedError) as there:
        simulation.client.wait_for_job_conditions("job", wait_timeout=SECONDS)
    assert there.value.log == ("one", "two")
    assert "The whole log: kfp-mindspore job logs job --backend kubernetes" in there.value.hint


def test_logs_are_followed_across_restarts(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    server = simulation.server

    def change_pods() -> None:
        simulation.watches("pods")()
        for attempt in (0, 1):
            for index in (0, 1):
                server.logs.pop(f"job-worker-{index}", None)
                simulation.put_pod(index, f"uid-{attempt}-{index}", started=False)
            for index in (0, 1):
                pod = f"job-worker-{index}"
                server.write(pod, f"2026-01-31T12:0{attempt}:00Z {attempt}/{index} begins")
                simulation.put_pod(index, f"uid-{attempt}-{index}")
            while sum(item.path.endswith("/log") for item in server.requests) < 2 * (attempt + 1):
                time.sleep(0.005)
            for index in (0, 1):
                simulation.put_pod(index, f"uid-{attempt}-{index}", 137 if attempt == 0 else 0)
                server.write(f"job-worker-{index}", f"2026-01-31T12:0{attempt}:01Z {attempt}/{index} ends", end=True)
            if attempt == 0:
                simulation.put_job("Restarting")
                for index in (0, 1):
                    server.remove(PODS_PATH, f"job-worker-{index}")
        simulation.put_job("Succeeded")

    simulation.later(change_pods)
    lines = list(simulation.client.backend.follow_logs("job", NAMESPACE, lambda pod: True, timeout=SECONDS))
    for index in (0, 1):
        assert [line for pod, line in lines if pod == f"job-worker-{index}"] == [
            f"{attempt}/{index} {word}" for attempt in (0, 1) for word in ("begins", "ends")
        ]


def test_logs_of_finished_job_and_of_one_pod(simulation: SimulatedJob) -> None:
    simulation.put_job("Succeeded")
    for index in (0, 1):
        simulation.put_pod(index, f"uid-{index}", 0)
        report = f'KFP_MINDSPORE_PROGRESS {{"percentage": {index}}}'
        simulation.server.write(f"job-worker-{index}", f"2026-01-31T12:00:00Z {report}", end=True)
    # Left by a job of the same name before it.
    simulation.put_pod(2, "uid-2", 0, ownerReferences=[{"uid": "before"}])
    follow = simulation.client.backend.follow_logs
    assert list(follow("job", NAMESPACE, lambda pod: pod.index == 1)) == [("job-worker-1", "progress: 1 %")]
    logs, _ = simulation.client.get_job_logs("job", replica_type="worker")
    assert logs == {"job-worker-0": "progress: 0 %\n", "job-worker-1": "progress: 1 %\n"}


def test_following_ends_with_job_timeout_and_reader(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    simulation.put_pod(0, "uid-0")
    simulation.server.write("job-worker-0", "2026-01-31T12:00:00Z one")
    follow = simulation.client.backend.follow_logs
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
    simulation.server.remove(JOBS_PATH, "job")
    simulation.put_pod(0, "uid-0", 143)
    simulation.server.write("job-worker-0", "2026-01-31T12:00:01Z two", end=True)
    assert list(lines) == [("job-worker-0", "two")]
    with pytest.raises(NotFoundError, match="job missing does not exist"):
        list(follow("missing", NAMESPACE, lambda pod: True))


def test_pods_are_listed_in_order_with_waiting_reasons(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    simulation.put_pod(10, "uid-10")
    simulation.put_pod(2, "uid-2", 137)
    pod = simulation.server.find(PODS_PATH, simulation.put_pod(0, "uid-0", started=False))
    assert pod is not None
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    simulation.server.put(PODS_PATH, pod)
    pods = simulation.client.get_job_pods("job")
    assert [(pod.index, pod.phase, pod.exit_code, pod.reason) for pod in pods] == [
        (0, "Pending", None, "ImagePullBackOff"),
        (2, "Failed", 137, "Error"),
        (10, "Running", None, None),
    ]
    assert simulation.client.get_job_pod_names("job", replica_index=2) == ["job-worker-2"]


def test_events_of_job_and_its_pods(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    for number, (name, uid) in enumerate(
        [("job", UID), ("job", "before"), ("job-worker-0", "p"), ("job-worker-0-x", "q"), ("other", "o")]
    ):
        event = {"involvedObject": {"name": name, "uid": uid}, "reason": f"R{number}", "message": "m", "count": 2}
        time_ = {"lastTimestamp": f"2026-01-31T12:00:{59 - number}Z"}
        simulation.server.put(EVENTS.get_path(NAMESPACE), {"metadata": {"name": f"e{number}"}, **event, **time_})
    events = simulation.client.backend.list_events("job", NAMESPACE)
    assert [(event.object, event.reason, event.message) for event in events] == [
        ("job-worker-0", "R2", "m (2 times)"),
        ("job", "R0", "m (2 times)"),
    ]


def test_updates_are_retried_on_conflict(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    simulation.server.faults.append(respond_once(409, method="PATCH", reason="Conflict", times=3))
    job = simulation.client.get_job("job")
    job.metadata["labels"] = {"a": "b"}
    simulation.client.update_job(job, "job")
    patch = simulation.server.requests[-1].body
    assert set(patch) == {"metadata", "spec"}
    assert patch["metadata"] == {"labels": {"a": "b"}}
    assert simulation.client.get_job("job").metadata["labels"] == {"a": "b"}
    simulation.server.faults[:] = [respond_once(409, method="PATCH", reason="Conflict", times=100)]
    with pytest.raises(ConflictError):
        simulation.client.update_job({"spec": {"successPolicy": "AllWorkers"}}, "job")
    simulation.server.faults.clear()
    with pytest.raises(NotFoundError, match="job other does not exist"):
        simulation.client.update_job({"spec": {}}, "other")


def test_updates_use_stored_replica_keys(simulation: SimulatedJob) -> None:
    document = build().to_dict()
    document["spec"]["msReplicaSpecs"] = {"worker": document["spec"]["msReplicaSpecs"]["Worker"]}
    simulation.server.put(JOBS_PATH, document)
    simulation.client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"replicas": 4}}}}, "job")
    assert simulation.client.get_job("job").workers == 4
    stored = simulation.server.find(JOBS_PATH, "job")
    assert stored is not None
    assert set(stored["spec"]["msReplicaSpecs"]) == {"worker"}


def test_deletion_waits_for_pods(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    simulation.put_pod(0, "uid-0")
    simulation.put_pod(1, "uid-1", ownerReferences=[{"uid": "another"}])
    # Its pod is deleted after the watch's event of the job.
    simulation.later(simulation.watches("pods"), lambda: simulation.server.remove(PODS_PATH, "job-worker-0"))
    simulation.client.delete_job("job")
    body = next(item.body for item in simulation.server.requests if item.method == "DELETE")
    assert (body["propagationPolicy"], body["preconditions"]) == ("Foreground", {"uid": UID})
    assert simulation.server.find(PODS_PATH, "job-worker-1") is not None
    with pytest.raises(NotFoundError, match="job job does not exist"):
        simulation.client.delete_job("job")


def test_deletion_with_grace_period(simulation: SimulatedJob) -> None:
    simulation.put_job("Running")
    simulation.put_pod(0, "uid-0")
    simulation.client.delete_job("job", delete_options={"gracePeriodSeconds": 2})
    body = next(item.body for item in simulation.server.requests if item.method == "DELETE" and "pods" in item.path)
    assert (body["gracePeriodSeconds"], body["preconditions"]) == (2, {"uid": "uid-0"})


def test_foreground_run_is_followed_and_deleted(simulation: SimulatedJob) -> None:
    def change_pods() -> None:
        while simulation.server.find(JOBS_PATH, "job") is None:
            time.sleep(0.005)
        simulation.put_job("Running", uid=simulation.server.find(JOBS_PATH, "job")["metadata"]["uid"])  # type: ignore[index]

    simulation.later(change_pods)
    with pytest.raises(WaitTimeoutError):
        run_job(simulation.client, build(namespace=NAMESPACE), timeout=0.5)
    assert simulation.client.list_jobs() == []


def test_commands_in_hints_are_complete(simulation: SimulatedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KubernetesBackend("other", kubeconfig=simulation.client.backend.kubeconfig)  # type: ignore[attr-defined]
    words = f"kfp-mindspore job get a --backend kubernetes --kubeconfig {backend.kubeconfig}"
    assert backend.name_command("get", "a", namespace="other") == f"{words} --namespace other"
    assert backend.name_command("get", "a", namespace=NAMESPACE) == words
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    assert "--backend" not in backend.name_command("get", "a")


def test_unreachable_server(tmp_path: Path, simulation: SimulatedJob) -> None:
    simulation.server.stop()
    backend = KubernetesBackend(kubeconfig=simulation.client.backend.kubeconfig)  # type: ignore[attr-defined]
    with pytest.raises(UnreachableError, match="cannot be reached"):
        MSJobClient(backend).list_jobs()
    with pytest.raises(UserError, match="no cluster is configured"):
        MSJobClient(KubernetesBackend(kubeconfig=tmp_path / "none")).list_jobs()


def test_pipeline_step_launches_its_job_on_cluster(
    simulation: SimulatedJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kfp_mindspore.steps.launch.job import launch_job

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(simulation.client.backend.kubeconfig))  # type: ignore[attr-defined]
    # The job of an earlier attempt of the step.
    simulation.put_job("Failed", uid="before")
    simulation.put_pod(0, "uid-before", 1, ownerReferences=[{"uid": "before"}])

    def change_pods() -> None:
        while (job := simulation.server.find(JOBS_PATH, "job")) is None or job["metadata"]["uid"] == "before":
            time.sleep(0.005)
        owner = {"ownerReferences": [{"uid": job["metadata"]["uid"]}]}
        simulation.server.write("job-worker-0", "2026-01-31T12:00:00Z epoch 1")
        simulation.put_job("Running", uid=job["metadata"]["uid"])
        simulation.put_pod(0, "uid-0", **owner)
        simulation.put_pod(0, "uid-0", 0, **owner)
        simulation.server.write("job-worker-0", "2026-01-31T12:00:01Z epoch 2", end=True)
        simulation.put_job("Succeeded", uid=job["metadata"]["uid"])

    simulation.later(lambda: simulation.server.remove(PODS_PATH, "job-worker-0"), change_pods)
    launch_job("/job", ["python"], JobOptions(image="example.com/train:1"), name="job", namespace=NAMESPACE)
    assert capsys.readouterr().out.splitlines()[1:] == ["epoch 1", "epoch 2"]


@pytest.mark.parametrize(
    ("pod", "methods"),
    [
        (None, ["DELETE"]),
        ({}, ["GET", "DELETE"]),
        # The step deletes its pod at once, and its job runs on by a longer lease.
        ({"deletionTimestamp": "2026-01-31T12:00:00Z"}, ["GET", "DELETE", "PATCH"]),
    ],
    ids=["without a pod", "terminated run", "drained node"],
)
def test_sigterm_deletes_job_unless_pod_is_deleted(
    pod: dict[str, Any] | None, methods: list[str], simulation: SimulatedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.steps.launch.job import launch_job

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(simulation.client.backend.kubeconfig))  # type: ignore[attr-defined]
    if pod is not None:
        simulation.server.put(PODS_PATH, {"metadata": {"name": "step"}, "spec": {}})
        monkeypatch.setenv("KFP_POD_NAME", "step")
    before: list[int] = []

    def terminate() -> None:
        simulation.watches("pods")()
        while not any(item.method == "PATCH" for item in simulation.server.requests):
            time.sleep(0.005)
        if pod is not None:
            simulation.server.put(PODS_PATH, {"metadata": {"name": "step", **pod}, "spec": {}})
        before.append(len(simulation.server.requests))
        os.kill(os.getpid(), signal.SIGTERM)

    simulation.later(terminate)
    with pytest.raises(SystemExit) as raised:
        launch_job("/job", ["python"], JobOptions(image="example.com/train:1"), name="job", namespace=NAMESPACE)
    assert raised.value.code == 143
    after = [item for item in simulation.server.requests[before[0] :] if "watch" not in item.query]
    assert [item.method for item in after] == methods
    assert (simulation.server.find(JOBS_PATH, "job") is None) == (methods[-1] == "DELETE")


@pytest.mark.parametrize("is_readable", [True, False])
def test_job_is_owned_by_workflow_of_step(
    is_readable: bool, simulation: SimulatedJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kfp_mindspore.steps.handover.step_pod import StepPod, read_step_pod

    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}, {**workflow, "controller": True}]
    metadata = {"name": "step", "labels": {"pipeline/runid": "7"}, "ownerReferences": owners}
    containers = [{"name": "wait", "image": "argoexec"}, {"name": "main", "image": "example.com/step:1"}]
    simulation.server.put(PODS_PATH, {"metadata": metadata, "spec": {"containers": containers}})
    if not is_readable:
        simulation.server.faults.append(respond_once(403, reason="Forbidden"))
    monkeypatch.setenv("KFP_POD_NAME", "step")
    pod = read_step_pod(simulation.client.backend.cluster)  # type: ignore[attr-defined]
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
    image: str,
    variable: str,
    has_step_image: bool,
    expected: str,
    simulation: SimulatedJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kfp_mindspore.steps.launch.job import launch_job

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(simulation.client.backend.kubeconfig))  # type: ignore[attr-defined]
    monkeypatch.setenv("KFP_POD_NAME", "step")
    monkeypatch.setenv("KFP_MINDSPORE_IMAGE", variable)
    spec = {"containers": [{"name": "main", "image": "example.com/step:1"}]}
    simulation.server.put(PODS_PATH, {"metadata": {"name": "step"}, "spec": spec})
    found: list[str] = []

    def finish() -> None:
        while (job := simulation.server.find(JOBS_PATH, "job")) is None:
            time.sleep(0.005)
        found.append(job["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"])
        simulation.put_job("Succeeded", uid=job["metadata"]["uid"])

    simulation.later(finish)
    launch_job(
        "/job",
        ["python"],
        JobOptions(image=image),
        name="job",
        namespace=NAMESPACE,
        has_step_image=has_step_image,
    )
    assert found == [expected]
