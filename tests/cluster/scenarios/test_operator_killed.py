"""An operator that is killed and restarted in each phase of a job: nothing is lost or done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kfp_mindspore.msjob.failure import JobFailedError
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.node import NODE
from tests.cluster.infrastructure.resources import set_schedulable
from tests.support.kube.node_jobs import NodeJobs
from tests.support.kube.operators import OperatorProcess, has


@pytest.fixture(scope="module")
def running(
    own_cluster: NodeCluster, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[NodeJobs, OperatorProcess]]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        own_cluster.make_namespace("killed") as namespace,
        OperatorProcess(own_cluster.kubeconfig, log, "-n", namespace) as operator,
    ):
        yield NodeJobs(own_cluster, namespace), operator


@pytest.fixture
def operator(running: tuple[NodeJobs, OperatorProcess]) -> Iterator[OperatorProcess]:
    operator = running[1]
    if operator.process is None:
        operator.start()
    yield operator
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


@pytest.fixture
def jobs(running: tuple[NodeJobs, OperatorProcess]) -> NodeJobs:
    return running[0]


@contextlib.contextmanager
def kill(operator: OperatorProcess) -> Iterator[None]:
    """Have no operator for as long as the block lasts."""
    operator.kill()
    yield
    operator.start()


def test_killed_before_job_is_observed(jobs: NodeJobs, operator: OperatorProcess) -> None:
    with kill(operator):
        job = jobs.start("unseen", workers=2)
        assert job.list_pods() == []
    job.wait("Running")
    job.wait_steps()
    job.finish()
    assert job.wait("Succeeded").status.restarts == 0
    job.check_events(JobCreated=1, JobRunning=1, JobSucceeded=1)
    job.delete()


def test_killed_after_first_status(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.start("created", workers=2)
    job.wait("Created")
    with kill(operator):
        pass
    running = job.wait("Running")
    assert running.status.attempt in (0, None)
    assert len(job.pod_uids()) == 3
    job.complete(restarts=0)
    job.delete()


def test_killed_while_pods_are_pending(jobs: NodeJobs, operator: OperatorProcess) -> None:
    with jobs.cluster.client() as client:
        set_schedulable(client, NODE, False)
        try:
            job = jobs.start("pending", workers=2)
            job.wait_pods(lambda pods: len(pods) == 3)
            uids = job.pod_uids()
            operator.kill()
        finally:
            set_schedulable(client, NODE, True)
    job.wait_pods(lambda pods: all(pod["status"].get("phase") == "Running" for pod in pods.values()))
    operator.start()
    job.wait("Running")
    assert job.pod_uids() == uids
    job.finish()
    assert job.wait("Succeeded").status.restarts == 0
    job.delete()


def test_worker_fails_while_operator_is_down(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.run("widowed", workers=2)
    with kill(operator):
        job.kill("widowed-worker-0")
        job.wait_pods(lambda pods: pods["widowed-worker-0"]["status"]["phase"] == "Failed")
    job.wait_restart("widowed-worker-0")
    job.complete(restarts=1)
    job.delete()


def test_killed_during_restart(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.run("halfway", workers=2, backoff_limit=1)
    job.kill("halfway-worker-1")
    job.wait("Restarting")
    with kill(operator):
        pass
    # The restart was counted before it was done: a second count would be one too many for the limit.
    job.wait_restart()
    job.complete(restarts=1)
    job.delete()


def test_killed_during_suspension(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.run("asleep", workers=2, backoff_limit=0)
    job.update(suspend=True)
    job.wait("Suspended")
    with kill(operator):
        pass
    job.check_nothing_is_left()
    with kill(operator):
        job.update(suspend=False)
        assert job.client.get_job(job.name).status.has("Suspended")
    job.wait_until(lambda job: job.status.has("Running"))
    job.complete(restarts=0)
    job.delete()


def test_job_succeeds_while_operator_is_down(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.run("finished", workers=2)
    with kill(operator):
        job.finish()
        job.wait_pods(lambda pods: all(pod["status"]["phase"] == "Succeeded" for pod in pods.values()))
        assert not has(job.get(), "Succeeded")
    done = job.wait("Succeeded")
    assert done.status.restarts == 0
    assert job.count_lost_steps() == 0
    job.delete()


def test_deadline_expires_while_operator_is_down(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.start("overdue", workers=1)
    running = job.wait("Running")
    with kill(operator):
        job.update(activeDeadlineSeconds=2)
        job.wait_age(running.status.start_time, 3)
        assert not has(job.get(), "Failed")
    with pytest.raises(JobFailedError, match="ran longer than 2 s"):
        job.wait("Succeeded")
    job.wait_pods(lambda pods: not pods)
    job.delete()


def test_ttl_expires_while_operator_is_down(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.start("leaving", workers=2)
    job.wait("Running")
    job.finish()
    done = job.wait("Succeeded")
    with kill(operator):
        job.update(ttlSecondsAfterFinished=1)
        job.wait_age(done.status.completion_time, 2)
        assert has(job.get(), "Succeeded")
    job.check_gone()


def test_job_is_deleted_while_operator_is_down(jobs: NodeJobs, operator: OperatorProcess) -> None:
    job = jobs.start("abandoned", workers=2)
    job.wait("Running")
    with kill(operator):
        # Owner references do it: without an operator, too.
        job.delete()
    again = jobs.start("abandoned", workers=2)
    again.wait("Running")
    again.finish()
    assert again.wait("Succeeded").status.restarts == 0
    again.delete()
