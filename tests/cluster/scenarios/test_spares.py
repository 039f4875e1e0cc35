"""Warm spares on a node: pods that have imported MindSpore become the members of the next gang."""

from __future__ import annotations

import time

import pytest

from tests.cluster.infrastructure.packages import PodPackages
from tests.support.kube.node_jobs import NodeJobs
from tests.support.kube.operators import wait_for
from tests.support.training.digits_job import TRAINING_SECONDS, DigitsJob

_TRAIN = "python -m kfp_mindspore.workloads.digits.train --epochs 100000"


@pytest.mark.mindspore
def test_spares_become_members_of_next_gang(jobs: NodeJobs, pod_packages: PodPackages) -> None:
    job = DigitsJob(jobs, "warm")
    job.train(pod_packages, _TRAIN.split(), workers=2, backoff_limit=2)
    _wait_epochs(job)
    cold = _kill_and_recover(job, "warm-worker-1")
    assert set(job.pod_uids()) == {"warm-scheduler-0", "warm-worker-0", "warm-worker-1"}

    job.client.update_job({"spec": {"warmSpares": 3}}, job.name)
    job.wait_until(lambda found: getattr(found.status, "warm_spares", None) == "3/3", TRAINING_SECONDS)
    spares = {name: uid for name, uid in job.pod_uids().items() if "spare" in name}
    for name in spares:
        wait_for(lambda name=name: "ready" in _read_log(job, name), lambda: "no spare is ready", TRAINING_SECONDS)
    warm = _kill_and_recover(job, "warm-worker-1")
    print(f"kill to the next epoch: {cold:.1f} s, with warm spares {warm:.1f} s")
    pods = {f"{pod.replica_type}-{pod.index}": pod.name for pod in job.list_pods()}
    assert set(pods) == {"Scheduler-0", "Worker-0", "Worker-1"}
    uids = job.pod_uids()
    assert {name: uids[name] for name in pods.values()} == spares
    assert "resum" in job.client.get_job_logs(job.name)[0][pods["Worker-0"]].lower()
    assert job.client.get_job(job.name).status.restarts == 2
    job.wait_until(lambda found: found.status.progress is not None)
    job.wait_until(lambda found: found.status.warm_spares == "3/3", TRAINING_SECONDS)
    job.delete()


def _read_log(job: DigitsJob, pod: str) -> str:
    return str(job.jobs.api.read_log(pod, job.jobs.namespace))


def _wait_epochs(job: DigitsJob, more: int = 2) -> None:
    count = len(job.read_metrics())
    wait_for(lambda: len(job.read_metrics()) >= count + more, lambda: f"{job.list_pods()}", TRAINING_SECONDS)


def _kill_and_recover(job: DigitsJob, worker: str) -> float:
    """Return the seconds from the kill of a worker to the second epoch after it."""
    start = time.monotonic()
    job.kill(worker)
    # The other worker completes at most one epoch more.
    _wait_epochs(job)
    return time.monotonic() - start
