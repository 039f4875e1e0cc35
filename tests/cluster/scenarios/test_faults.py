"""Faults of the pods of a running job on a real node: restarts, their count, and lost steps."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob import build_msjob
from kfp_mindspore.msjob.failure import JobFailedError
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.node import NODE
from tests.cluster.infrastructure.resources import evict, set_schedulable
from tests.support.kube.node_jobs import CHECKPOINT_STEPS, SCRIPT, LogReader, NodeJob, NodeJobs

# Kubernetes marks a node 50 s after its last report.
NODE_SECONDS = 180.0
_NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


def test_killed_worker_restarts_gang_once(jobs: NodeJobs) -> None:
    job = jobs.start("killed", workers=2)
    job.wait("Running")
    with LogReader(job) as log:
        job.wait_steps()
        before = job.pod_uids()
        job.kill("killed-worker-0")
        job.wait_restart()
        after = job.pod_uids()
        assert set(after) == set(before)
        assert not set(after.values()) & set(before.values())
        job.wait_steps()
        job.finish()
    done = job.wait("Succeeded")
    assert done.status.restarts == 1
    assert done.status.failure.pod == "killed-worker-0"
    assert done.status.failure.exit_code == 137
    assert job.count_lost_steps() < CHECKPOINT_STEPS
    # The log is that of both gangs, each line once.
    lines = [line for pod, line in log.lines if pod == "killed-worker-0"]
    assert [line for line in lines if line.startswith("step ")] == [f"step {step}" for step in job.list_steps()]
    assert sum(line.startswith("begins after") for line in lines) == 2
    job.check_events(JobCreated=1, JobRunning=2, JobRestarting=1, JobSucceeded=1)
    job.delete()


def test_killed_worker_beyond_limit_fails_job(jobs: NodeJobs) -> None:
    job = jobs.start("limited", workers=2, backoff_limit=0)
    job.wait("Running")
    job.wait_steps(2)
    job.kill("limited-worker-1")
    with pytest.raises(JobFailedError, match="limited-worker-1 ended with exit code 137; restarted 0 of 0 times"):
        job.wait("Succeeded")
    # The peers are ended at once, and what has ended stays for its log.
    job.wait_pods(lambda pods: set(pods) == {"limited-worker-1"})
    job.delete()


def test_deleted_scheduler_restarts_gang(jobs: NodeJobs) -> None:
    job = jobs.run("headless", workers=2)
    jobs.api.delete(PODS, "headless-scheduler-0", jobs.namespace)
    job.wait_restart("headless-scheduler-0")
    job.complete(restarts=1)
    job.delete()


def test_evicted_worker_waits_for_node_uncounted(jobs: NodeJobs) -> None:
    job = jobs.run("drained", workers=2, backoff_limit=0)
    with jobs.cluster.client() as client:
        set_schedulable(client, NODE, False)
        try:
            evict(client, jobs.namespace, "drained-worker-1")
            disrupted = job.wait("Restarting")
            assert disrupted.status.get_condition("Restarting").reason == "JobDisrupted"
            job.wait_pods(lambda pods: len(pods) == 3 and all(_is_unschedulable(pod) for pod in pods.values()))
            waiting = job.list_steps()
            # The worker that was not evicted got SIGTERM in time to save.
            assert not job.client.is_job_running(job.name)
        finally:
            set_schedulable(client, NODE, True)
    job.wait_attempt(1)
    assert job.list_steps()[: len(waiting)] == waiting
    job.complete(restarts=0)
    job.delete()


def test_lost_node_is_replaced_without_its_kubelet(jobs: NodeJobs) -> None:
    """The node's kubelet is paused: no report, and no confirmation of deletions."""
    job = NodeJob(jobs, "lost")
    shutil.copyfile(SCRIPT, job.volume / SCRIPT.name)
    command = ["python", f"{job.mount}/{SCRIPT.name}", job.mount]
    document = build_msjob(
        job.name, command=command, image=PYTHON, workers=2, namespace=jobs.namespace, backoff_limit=0
    )
    # The default of 30 s only takes longer.
    key = "node.kubernetes.io/unreachable"
    toleration = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    document.ms_replica_specs["Worker"].template["spec"]["tolerations"] = [toleration]
    job.create(document)
    job.wait("Running")
    job.wait_steps()
    before = set(job.pod_uids().values())
    with jobs.cluster.daemons.pause("kubelet"):
        job.wait_pods(lambda pods: all(_is_lost(pod) for pod in pods.values()), NODE_SECONDS)
        # Set by the node's controller unless all nodes are lost, as here.
        jobs.api.patch(_NODES, NODE, "", {"spec": {"taints": [{"key": key, "effect": "NoExecute"}]}})
        disrupted = job.wait("Restarting")
        assert disrupted.status.get_condition("Restarting").reason == "JobDisrupted"
        assert disrupted.status.failure.reason == "NodeLost"
        job.wait_pods(
            lambda pods: (
                len(pods) == 3
                and not before & {pod["metadata"]["uid"] for pod in pods.values()}
                and all(_is_unschedulable(pod) for pod in pods.values())
            )
        )
    # A node whose kubelet reports late on a loaded machine is lost once more.
    job.wait_until(
        lambda found: found.status and found.status.has("Running") and (getattr(found.status, "attempt", 0) or 0) >= 1
    )
    job.finish()
    assert job.wait("Succeeded").status.restarts == 0
    job.delete()


def test_oom_killed_worker(jobs: NodeJobs) -> None:
    job = jobs.start("greedy", "--allocate", "20", workers=1, limits={"memory": "64Mi"}, backoff_limit=1)
    with pytest.raises(JobFailedError, match="OOMKilled"):
        job.wait("Succeeded")
    failed = job.client.get_job(job.name)
    assert failed.status.get_condition("Failed").reason == "BackoffLimitExceeded"
    assert failed.status.restarts == 1
    assert failed.status.failure.exit_code == 137
    assert failed.status.failure.reason == "OOMKilled"
    # The second run resumed from the checkpoint of the first.
    assert job.count_lost_steps() < CHECKPOINT_STEPS
    job.delete()


def test_missing_image_is_reported_until_deadline(jobs: NodeJobs) -> None:
    image = "kfp-mindspore.invalid/none:1"
    job = jobs.start("unpullable", image=image, workers=2)
    stuck = job.wait_until(lambda job: job.status and getattr(job.status, "waiting", None))
    assert f"ImagePullBackOff: {image}" in stuck.status.waiting
    assert not stuck.status.has("Running")
    assert image in job.wait_event("Waiting")["message"]
    job.update(activeDeadlineSeconds=1)
    with pytest.raises(JobFailedError, match="ran longer than 1 s"):
        job.wait("Succeeded")
    failed = job.client.get_job(job.name)
    assert failed.status.get_condition("Failed").reason == "DeadlineExceeded"
    assert failed.status.restarts == 0
    job.wait_pods(lambda pods: not pods)
    # Each try of the kubelet is no event of the job.
    assert job.count_events("Waiting") <= 2
    job.delete()


def test_invalid_image_name_fails_job(jobs: NodeJobs) -> None:
    job = jobs.start("misspelt", image="No/Image:At:All", workers=1)
    with pytest.raises(JobFailedError, match="InvalidImageName"):
        job.wait("Succeeded")
    assert job.client.get_job(job.name).status.restarts == 0
    job.delete()


def _is_lost(pod: Mapping[str, Any]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "False" for item in pod["status"]["conditions"])


def _is_unschedulable(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(item["type"] == "PodScheduled" and item["status"] == "False" for item in conditions)
