"""Kueue itself admits, preempts and requeues MSJobs, Jobs and TrainJobs on a node."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.kube.cluster import CancellationToken, Cluster
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob import MSJob, MSJobClient
from kfp_mindspore.msjob.api.kueue import (
    LOCAL_QUEUES,
    PRIORITY_CLASS_LABEL,
    RESOURCE_FLAVORS,
    WORKLOADS,
    name_workload,
)
from kfp_mindspore.msjob.api.names import JOB_LABEL, QUEUE_LABEL
from kfp_mindspore.msjob.api.status import read_waiting
from kfp_mindspore.msjob.api.waiting import QUEUED
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED, build_training_runtime
from kfp_mindspore.sweeps import sweep
from tests.cluster.infrastructure.api_server import ApiServer
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.controllers.kueue_cluster import Queue, build, get_condition, run_kueue, wait_workload
from tests.support.controllers.trainer_cluster import install_definitions, run_trainer
from tests.support.kube.node_jobs import NodeJob, NodeJobs
from tests.support.kube.operators import OperatorProcess, is_deleting, wait_for
from tests.support.kube.simulated_kueue import explain_missing
from tests.support.training.digits_job import TRAINING_SECONDS, DigitsJob

HIGH = "kfp-mindspore-high"
# One scheduler, two workers.
GANG = 3
JOBS = Resource("batch", "v1", "jobs", "Job")
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
_TRAIN = ("python", "-m", "kfp_mindspore.workloads.digits.train", "--epochs", "6")


class Cases:
    """Jobs of one namespace with Kueue and an operator that obeys it.

    Args:
        jobs: Creates jobs.
        operator: The operator.
    """

    def __init__(self, jobs: NodeJobs, operator: OperatorProcess) -> None:
        self.jobs = jobs
        self.api = jobs.api
        self.namespace = jobs.namespace
        self.operator = operator

    def add_queue(self, name: str, pods: int, **options: Any) -> Queue:
        """Create a queue, whose name begins with the namespace's."""
        return Queue(self.api, self.namespace, f"{self.namespace}-{name}").create(pods, **options)

    def start(self, name: str, queue: Queue | str, *, priority: str = "", **options: Any) -> NodeJob:
        """Submit a job to a queue."""
        return self.jobs.start(name, labels=label(queue, priority), **options)

    def run(self, name: str, queue: Queue, **options: Any) -> NodeJob:
        """Submit a job to a queue, and wait until it counts its steps."""
        job = self.start(name, queue, **options)
        job.wait("Running")
        job.wait_steps()
        return job

    def wait_workload(self, job: NodeJob, kind: str, status: str = "True") -> dict[str, Any]:
        """Wait until a job's Workload has a condition."""
        return wait_workload(self.api, self.namespace, name_workload(job.name), kind, status)

    def wait_queued(self, job: NodeJob, text: str = "") -> str:
        """Wait until a job is queued with a text in its message, and until it has no pod; return the message."""

        def is_queued(job: MSJob) -> bool:
            waiting = read_waiting(job.status)
            return waiting is not None and waiting.reason == QUEUED and text in waiting.message

        queued = read_waiting(job.wait_until(is_queued).status)
        job.wait_pods(lambda pods: not pods)
        assert queued is not None
        return queued.message

    def list_workloads(self, job: NodeJob) -> list[str]:
        """Return the names of a job's Workloads."""
        uid = job.get()["metadata"]["uid"]
        items = self.api.list(WORKLOADS, self.namespace)
        owned = [item for item in items if uid in [owner["uid"] for owner in item["metadata"]["ownerReferences"]]]
        return [item["metadata"]["name"] for item in owned]

    @contextlib.contextmanager
    def kill_operator(self) -> Iterator[None]:
        """Have no operator for as long as the block lasts."""
        self.operator.kill()
        yield
        self.operator.start()


def label(queue: Queue | str, priority: str = "") -> dict[str, str]:
    """Return the labels that submit a job to a queue."""
    name = queue if isinstance(queue, str) else queue.name
    return {QUEUE_LABEL: name, **({PRIORITY_CLASS_LABEL: priority} if priority else {})}


def add_priorities(api: Cluster) -> None:
    """Create the priority class HIGH; a Workload without a class has priority 0."""
    api.apply(build("WorkloadPriorityClass", HIGH, value=1000))


@pytest.fixture(scope="module")
def kueue(own_cluster: NodeCluster) -> Iterator[None]:
    # Kueue manages TrainJobs only where they are defined when it starts; later ones it refuses: "unsupported runtime".
    install_definitions(own_cluster)
    with run_kueue(own_cluster):
        add_priorities(Cluster(own_cluster.kubeconfig))
        yield


@pytest.fixture(scope="module")
def running(
    own_cluster: NodeCluster, definition: None, kueue: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cases]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        own_cluster.make_namespace("queued") as namespace,
        OperatorProcess(own_cluster.kubeconfig, log, "-n", namespace, "--kueue") as operator,
    ):
        yield Cases(NodeJobs(own_cluster, namespace), operator)


@pytest.fixture
def cases(running: Cases) -> Iterator[Cases]:
    if running.operator.process is None:
        running.operator.start()
    yield running
    assert "Traceback" not in running.operator.log.read_text(), running.operator.log.read_text()


def test_api_server_alone_admits_and_preempts_jobs(start_api_server: Callable[..., ApiServer]) -> None:
    server = start_api_server()
    api = Cluster(server.kubeconfig)
    with run_kueue(server), server.make_namespace() as namespace:
        add_priorities(api)
        queue = Queue(api, namespace, "one").create(1, preemption=True)
        create_job(api, namespace, "first", queue)
        wait_suspended(api, namespace, "first", False)
        create_job(api, namespace, "second", queue)
        workload = wait_for_reason(api, namespace, queue, "second")
        assert "insufficient unused quota" in get_condition(workload, "QuotaReserved")["message"]
        create_job(api, namespace, "urgent", queue, HIGH)
        wait_suspended(api, namespace, "urgent", False)
        wait_suspended(api, namespace, "first", True)
        queue.wait_used(1)
        api.delete(JOBS, "urgent", namespace)
        # By their time of creation, which has whole seconds.
        next_one = wait_admitted(api, namespace, {"first", "second"})
        api.delete(JOBS, next_one, namespace)
        last = wait_admitted(api, namespace, {"first", "second"} - {next_one})
        api.delete(JOBS, last, namespace)
        queue.wait_used(0)


def create_job(api: Cluster, namespace: str, name: str, queue: Queue, priority: str = "") -> None:
    """Create a Job, whose pod no node runs."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "kfp-mindspore.invalid/none"}]}
    metadata = {"name": name, "labels": label(queue, priority)}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}
    api.create(JOBS, job, namespace)


def wait_suspended(api: Cluster, namespace: str, name: str, suspended: bool) -> None:
    """Wait until a Job is suspended or not."""
    for objects in api.watch(JOBS, namespace, timeout=60):
        if name in objects and bool(objects[name]["spec"].get("suspend")) is suspended:
            return
    raise AssertionError(f"{name} is not {suspended=}: {api.list(WORKLOADS, namespace)}")


def wait_admitted(api: Cluster, namespace: str, names: Collection[str]) -> str:
    """Wait until one of these Jobs is not suspended, and return its name."""
    for objects in api.watch(JOBS, namespace, timeout=60):
        admitted = [name for name in names if name in objects and not objects[name]["spec"].get("suspend")]
        if admitted:
            return admitted[0]
    raise AssertionError(f"none of {names} is admitted: {api.list(WORKLOADS, namespace)}")


def wait_for_reason(api: Cluster, namespace: str, queue: Queue, job: str) -> dict[str, Any]:
    """Wait until Kueue says why a Job's Workload has no quota; return the Workload."""
    for objects in api.watch(WORKLOADS, namespace, timeout=60):
        for name, workload in objects.items():
            if name.startswith(f"job-{job}-") and get_condition(workload, "QuotaReserved").get("status") == "False":
                return dict(workload)
    raise AssertionError(f"{queue.name}: {queue.list_workloads()}")


def test_second_gang_has_no_pod_until_first_ends(cases: Cases) -> None:
    queue = cases.add_queue("one", GANG)
    first = cases.run("first", queue)
    second = cases.start("second", queue)
    message = cases.wait_queued(second, "insufficient unused quota")
    assert message.startswith(f'queue "{queue.name}": ')
    pod_sets = cases.wait_workload(second, "QuotaReserved", "False")["spec"]["podSets"]
    assert {item["name"]: item["count"] for item in pod_sets} == {"scheduler": 1, "worker": 2}
    queue.wait_used(GANG)
    first.wait_steps()
    assert second.pod_uids() == {}
    first.complete(restarts=0)
    cases.wait_workload(first, "Finished")
    second.wait("Running")
    second.complete(restarts=0)
    queue.wait_used(0)
    for job in (first, second):
        assert cases.list_workloads(job) == [name_workload(job.name)]
        job.delete()
    wait_for(lambda: not queue.list_workloads(), lambda: f"Workloads are left: {queue.list_workloads()}")


def test_preempted_gang_resumes_at_its_step(cases: Cases) -> None:
    queue = cases.add_queue("preempted", GANG, preemption=True)
    low = cases.run("low", queue, backoff_limit=0)
    high = cases.start("high", queue, priority=HIGH)
    cases.wait_workload(low, "Evicted")
    high.wait("Running")
    assert low.pod_uids() == {}
    assert low.read_checkpoint() == max(low.list_steps())
    cases.wait_queued(low)
    high.complete(restarts=0)
    low.wait_steps()
    # No step was left out or done twice, and the restart is not counted.
    low.complete(restarts=0)
    assert cases.list_workloads(low) == [name_workload("low")]
    queue.wait_used(0)
    low.delete()
    high.delete()


@pytest.mark.mindspore
def test_preempted_weights_are_those_of_undisturbed_training(cases: Cases, pod_packages: PodPackages) -> None:
    alone = DigitsJob(cases.jobs, "undisturbed")
    alone.train(pod_packages, _TRAIN, workers=1)
    alone.wait("Succeeded", seconds=TRAINING_SECONDS)
    queue = cases.add_queue("weights", 1, preemption=True)
    job = DigitsJob(cases.jobs, "disturbed")
    job.train(pod_packages, _TRAIN, workers=1, backoff_limit=0, labels=label(queue))
    wait_for(lambda: len(job.read_metrics()) >= 2, lambda: f"no epoch: {job.list_pods()}", TRAINING_SECONDS)
    high = cases.run("urgent", queue, workers=1, priority=HIGH)
    cases.wait_queued(job)
    high.complete(restarts=0)
    assert job.wait("Succeeded", seconds=TRAINING_SECONDS).status.restarts == 0
    expected, found = read_weights(alone), read_weights(job)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert [record["step"] for record in job.read_metrics()] == [record["step"] for record in alone.read_metrics()]
    for each in (alone, job, high):
        each.delete()


def read_weights(job: DigitsJob) -> dict[str, np.ndarray]:
    from mindspore import load_checkpoint

    parameters = load_checkpoint(str(Checkpoint.open(job.out / "checkpoint").network_file))
    return {name: parameter.asnumpy() for name, parameter in parameters.items()}


def test_operator_killed_before_it_sees_job(cases: Cases) -> None:
    queue = cases.add_queue("unseen", GANG)
    with cases.kill_operator():
        job = cases.start("unseen", queue)
        assert cases.list_workloads(job) == []
    check_one_gang(cases, job, queue)


def test_operator_killed_while_job_is_pending(cases: Cases) -> None:
    queue = cases.add_queue("pending", 0)
    job = cases.start("pending", queue)
    cases.wait_queued(job)
    with cases.kill_operator():
        queue.set_quota(GANG)
        cases.wait_workload(job, "Admitted")
        assert job.pod_uids() == {}
    check_one_gang(cases, job, queue)


def test_operator_killed_while_pods_are_created(cases: Cases) -> None:
    queue = cases.add_queue("admitted", GANG)
    job = cases.start("admitted", queue)
    cases.wait_workload(job, "Admitted")
    with cases.kill_operator():
        pass
    check_one_gang(cases, job, queue)


def test_operator_killed_while_gang_runs(cases: Cases) -> None:
    queue = cases.add_queue("running", GANG)
    job = cases.run("running", queue)
    uids = job.pod_uids()
    with cases.kill_operator():
        pass
    job.wait_steps()
    assert job.pod_uids() == uids
    check_one_gang(cases, job, queue)


def test_operator_killed_before_eviction(cases: Cases) -> None:
    queue = cases.add_queue("evicted", GANG)
    job = cases.run("evicted", queue, backoff_limit=0)
    with cases.kill_operator():
        queue.stop()
        cases.wait_workload(job, "Evicted")
        queue.wait_used(GANG)
    cases.wait_queued(job)
    assert job.read_checkpoint() == max(job.list_steps())
    queue.wait_used(0)
    with cases.kill_operator():
        queue.stop("None")
        cases.wait_workload(job, "Admitted")
    check_one_gang(cases, job, queue)


def test_operator_killed_during_eviction(cases: Cases) -> None:
    queue = cases.add_queue("halfway", GANG)
    job = cases.run("halfway", queue, backoff_limit=0)
    queue.stop()
    job.wait_pods(lambda pods: any(is_deleting(pod) for pod in pods.values()) or not pods)
    with cases.kill_operator():
        pass
    cases.wait_queued(job)
    queue.wait_used(0)
    queue.stop("None")
    check_one_gang(cases, job, queue)


def test_operator_killed_while_job_finishes(cases: Cases) -> None:
    queue = cases.add_queue("finished", GANG)
    job = cases.run("finished", queue)
    with cases.kill_operator():
        job.finish()
        job.wait_pods(lambda pods: all(pod["status"]["phase"] == "Succeeded" for pod in pods.values()))
        queue.wait_used(GANG)
    job.wait("Succeeded")
    check_one_gang(cases, job, queue)


def test_second_operator_takes_over_queued_jobs(
    own_cluster: NodeCluster, definition: None, kueue: None, tmp_path: Path
) -> None:
    with own_cluster.make_namespace("two-operators") as namespace:
        flags = ("-n", namespace, "--kueue", "--leader-elect", "--lease-namespace", namespace)
        first = OperatorProcess(own_cluster.kubeconfig, tmp_path / "first", *flags)
        second = OperatorProcess(own_cluster.kubeconfig, tmp_path / "second", *flags)
        with first, second:
            cases = Cases(NodeJobs(own_cluster, namespace), first)
            queue = cases.add_queue("shared", GANG)
            running = cases.run("running", queue)
            waiting = cases.start("waiting", queue)
            cases.wait_queued(waiting)
            uids = running.pod_uids()
            first.kill()
            wait_for(lambda: second.read_metric("msjob_leading") == 1, second.read_log)
            running.wait_steps()
            assert running.pod_uids() == uids
            running.complete(restarts=0)
            check_one_gang(cases, waiting, queue)
            running.delete()
            assert "Traceback" not in second.log.read_text()


def check_one_gang(cases: Cases, job: NodeJob, queue: Queue) -> None:
    """Let a job end: it had one Workload and as many pods as its gang, lost nothing and freed its quota."""
    if not job.client.is_job_succeeded(job.name):
        job.wait_until(lambda job: job.status and job.status.has("Running"))
        job.wait_steps()
        assert len(job.pod_uids()) == GANG
        job.finish()
    assert job.wait("Succeeded").status.restarts == 0
    assert job.count_lost_steps() == 0
    assert cases.list_workloads(job) == [name_workload(job.name)]
    cases.wait_workload(job, "Finished")
    queue.wait_used(0)
    job.delete()


def test_pods_get_flavor_of_their_quota(cases: Cases) -> None:
    toleration = {"key": "kfp-mindspore.test/npu", "operator": "Exists", "effect": "NoSchedule"}
    queue = cases.add_queue("flavor", GANG, node_labels={"kubernetes.io/os": "linux"}, tolerations=[toleration])
    job = cases.run("flavored", queue)
    pods = cases.api.list(PODS, cases.namespace, labels=f"{JOB_LABEL}=flavored")
    assert len(pods) == GANG
    for pod in pods:
        assert pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
        assert toleration in pod["spec"]["tolerations"]
    job.complete(restarts=0)
    job.delete()


def test_restarted_gang_waits_for_flavor_that_disappeared(cases: Cases) -> None:
    queue = cases.add_queue("vanished", GANG)
    job = cases.run("vanished", queue)
    flavor = cases.api.get(RESOURCE_FLAVORS, queue.name)
    # Kueue keeps a flavor that a queue uses, until somebody removes the finalizer.
    cases.api.delete(RESOURCE_FLAVORS, queue.name)
    cases.api.patch(RESOURCE_FLAVORS, queue.name, "", {"metadata": {"finalizers": None}})
    job.wait_steps()
    job.kill("vanished-worker-1")
    expected = f'queue "{queue.name}": {explain_missing(RESOURCE_FLAVORS, queue.name)}'
    job.wait_until(lambda job: job.status and job.status.waiting == expected)
    cases.api.apply({**flavor, "metadata": {"name": queue.name}})
    job.wait_restart("vanished-worker-1")
    job.complete(restarts=1)
    job.delete()


def test_deleted_workload_is_created_again(cases: Cases) -> None:
    queue = cases.add_queue("deleted", GANG)
    job = cases.run("robbed", queue, backoff_limit=0)
    before = cases.wait_workload(job, "Admitted")["metadata"]["uid"]
    cases.api.delete(WORKLOADS, name_workload("robbed"), cases.namespace)

    def is_new() -> bool:
        items = {item["metadata"]["uid"] for item in queue.list_workloads()}
        return len(items) == 1 and before not in items

    wait_for(is_new, lambda: f"no new Workload: {queue.list_workloads()}")
    cases.wait_workload(job, "Admitted")
    job.wait_steps()
    check_one_gang(cases, job, queue)


@pytest.mark.parametrize("what", ["missing", "stopped", "too-small"])
def test_job_says_why_it_is_queued(cases: Cases, what: str) -> None:
    queue = Queue(cases.api, cases.namespace, f"{cases.namespace}-{what}")
    if what != "missing":
        queue.create(GANG - 1 if what == "too-small" else GANG)
    if what == "stopped":
        queue.stop("Hold")
        queue.wait_condition(LOCAL_QUEUES, "Active", "False")
    job = cases.start(f"never-{what}", queue)
    expected = {
        "missing": "doesn't exist",
        "stopped": "is inactive",
        "too-small": "insufficient quota for pods",
    }[what]
    message = cases.wait_queued(job, expected)
    assert message.startswith(f'queue "{queue.name}": ')
    if what == "too-small":
        queue.set_quota(GANG)
    elif what == "missing":
        queue.create(GANG)
    else:
        queue.stop("None")
    check_one_gang(cases, job, queue)


class QueueClient(MSJobClient):
    """Submits jobs of a sweep to a queue, with a volume in their pods.

    Args:
        job: Has the volume.
        queue: The queue.
        packages: MindSpore and the working tree.
    """

    def __init__(self, job: NodeJob, queue: Queue, packages: PodPackages) -> None:
        super().__init__(job.client.backend)
        self._job, self._queue, self._packages = job, queue, packages

    def create_job(self, job: Any = None, *arguments: Any, **options: Any) -> None:
        """Submit a job that `train` has built."""
        assert isinstance(job, MSJob)
        job.metadata["labels"] = {**(job.metadata.get("labels") or {}), **label(self._queue)}
        for spec in job.ms_replica_specs.values():
            spec.template["spec"] = self._packages.add_to(spec.template["spec"])
        self._job.add_volume(job)
        super().create_job(job, *arguments, **options)


@pytest.mark.mindspore
def test_sweep_of_eight_runs_two_trials_at_once(cases: Cases, pod_packages: PodPackages, tmp_path: Path) -> None:
    data = NodeJob(cases.jobs, "trials")
    load_dataset("digits", data.volume / "data")
    queue = cases.add_queue("trials", 2)
    with count_pods(cases, "trials-") as counts:
        result = sweep(
            {
                "network": "kfp_mindspore.workloads.digits.network:LeNet5",
                "dataset": f"{data.mount}/data",
                "base_image": PYTHON,
                "trainer_parameters": {"epochs": 1, "metrics": ["accuracy"]},
            },
            {"learning_rate": [0.01, 0.007, 0.005, 0.003, 0.002, 0.001, 0.0005, 0.0001]},
            "accuracy",
            directory=tmp_path / "trials",
            output=f"{data.mount}/out",
            client=QueueClient(data, queue, pod_packages),
            sampler="grid",
            trials=8,
            parallel=8,
            pruner="none",
        )
    assert [(trial.state, trial.reason) for trial in result.trials] == [("complete", "")] * 8
    assert max(counts) == 2
    queue.wait_used(0)


@contextlib.contextmanager
def count_pods(cases: Cases, prefix: str) -> Iterator[list[int]]:
    """Append how many pods with a prefix have or await a process, whenever that changes, until the block ends."""
    counts: list[int] = []
    token = CancellationToken()

    def watch() -> None:
        for pods in cases.api.watch(PODS, cases.namespace, timeout=TRAINING_SECONDS, token=token):
            running = [name for name, pod in pods.items() if name.startswith(prefix) and not has_ended(pod)]
            counts.append(len(running))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        token.cancel()
        thread.join(60)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's containers have ended, which the kubelet reports before the phase."""
    containers = pod["status"].get("containerStatuses") or []
    ended = bool(containers) and all("terminated" in (item.get("state") or {}) for item in containers)
    return ended or pod["status"].get("phase") in ("Succeeded", "Failed")


def test_train_job_waits_for_quota(cases: Cases, own_cluster: NodeCluster) -> None:
    queue = cases.add_queue("trainer", 0)
    with run_trainer(own_cluster):
        runtime = build_training_runtime(DISTRIBUTED, JobOptions(image=PYTHON))
        cases.api.apply(runtime)
        trainer = {"numNodes": 2, "command": ["python", "-c", "print('admitted')"]}
        job = {
            "apiVersion": TRAIN_JOBS.api_version,
            "kind": TRAIN_JOBS.kind,
            "metadata": {"name": "trainer", "labels": label(queue)},
            "spec": {"runtimeRef": {"name": DISTRIBUTED}, "trainer": trainer},
        }
        cases.api.create(TRAIN_JOBS, job, cases.namespace)
        wait_for(lambda: len(queue.list_workloads()) == 1, lambda: "Kueue made no Workload")
        (workload,) = queue.list_workloads()
        wait_workload(cases.api, cases.namespace, workload["metadata"]["name"], "QuotaReserved", "False")
        assert cases.api.get(TRAIN_JOBS, "trainer", cases.namespace)["spec"]["suspend"] is True
        assert list_pods(cases, "trainer") == []
        queue.set_quota(2)
        done = wait_train_job(cases, "trainer", "Complete")
        assert get_condition(done, "Complete")["status"] == "True"
        assert len(list_pods(cases, "trainer")) == 2
        wait_workload(cases.api, cases.namespace, workload["metadata"]["name"], "Finished")
        queue.wait_used(0)
        cases.api.delete(TRAIN_JOBS, "trainer", cases.namespace)


def list_pods(cases: Cases, job: str) -> list[str]:
    """Return the pods of a TrainJob, which has its JobSet's name."""
    items = cases.api.list(PODS, cases.namespace, labels=f"jobset.sigs.k8s.io/jobset-name={job}")
    return [item["metadata"]["name"] for item in items]


def wait_train_job(cases: Cases, name: str, condition: str) -> dict[str, Any]:
    """Wait until a TrainJob has a condition."""
    job: dict[str, Any] = {}
    for jobs in cases.api.watch(TRAIN_JOBS, cases.namespace, timeout=120):
        job = jobs.get(name) or {}
        if get_condition(job, condition).get("status") == "True":
            return job
    raise AssertionError(f"{name} is not {condition}: {job}")
