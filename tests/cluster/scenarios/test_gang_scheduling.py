"""Gang schedulers of their own projects: a job gets room for all of its pods, or for none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob.api.names import JOB_LABEL
from kfp_mindspore.operator.options import get_pod_groups
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.node import NODE
from tests.support.controllers.gang_schedulers import run_scheduler_plugins, run_volcano
from tests.support.kube.node_jobs import CHECKPOINT_STEPS, NodeJob, NodeJobs
from tests.support.kube.operators import OperatorProcess, wait_for

# A device that only this test's pods request.
DEVICE = "kfp-mindspore.test/npu"
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SCHEDULERS = {"scheduler-plugins": run_scheduler_plugins, "volcano": run_volcano}


@pytest.fixture(scope="module", params=SCHEDULERS)
def gang_scheduler(own_cluster: NodeCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of a gang scheduler that runs, on a node with 3 devices."""
    api = Cluster(own_cluster.kubeconfig)
    _set_devices(api, 3)
    try:
        with SCHEDULERS[request.param](own_cluster):
            yield request.param
    finally:
        _set_devices(api, None)


@pytest.fixture
def jobs(own_cluster: NodeCluster, gang_scheduler: str, definition: None, tmp_path: Path) -> Iterator[NodeJobs]:
    with own_cluster.make_namespace("gangs") as namespace:
        flags = ("-n", namespace, "--gang-scheduler", gang_scheduler)
        with OperatorProcess(own_cluster.kubeconfig, tmp_path / "log", *flags):
            yield NodeJobs(own_cluster, namespace)


def test_gang_without_resources_holds_none(jobs: NodeJobs, gang_scheduler: Any) -> None:
    first = _start(jobs, "first", workers=2)
    first.wait("Running")
    large = _start(jobs, "large", workers=3)
    large.wait("Created")
    if gang_scheduler == "scheduler-plugins":
        # Volcano queues the group before its pods are created.
        large.wait_pods(lambda pods: len(pods) == 4 and all(map(_was_refused, pods.values())))
    # One device is free, which large does not hold.
    small = _start(jobs, "small", workers=1)
    small.wait("Running")
    small.wait_steps()
    small.finish()
    small.wait("Succeeded")
    assert _list_bound(large) == []
    assert not large.client.get_job("large").status.has("Running")

    first.finish()
    first.wait("Succeeded")
    large.wait("Running")
    assert len(_list_bound(large)) == 4
    large.finish()
    large.wait("Succeeded")
    groups = get_pod_groups(gang_scheduler)
    assert groups is not None
    for job in (first, small, large):
        job.delete()
    wait_for(lambda: not jobs.api.list(groups, jobs.namespace), lambda: "a PodGroup is left")


def test_restarted_gang_is_scheduled_again(jobs: NodeJobs) -> None:
    job = _start(jobs, "again", workers=3)
    job.wait("Running")
    job.wait_steps()
    job.kill("again-worker-1")
    job.wait_attempt(1)
    job.wait_steps()
    assert job.count_lost_steps() < CHECKPOINT_STEPS
    job.finish()
    assert job.wait("Succeeded").status.restarts == 1
    job.delete()


def _set_devices(api: Cluster, count: int | None) -> None:
    """Set the number of devices of the node; None for a node without any."""
    devices = {DEVICE: count and str(count)}
    api.patch(NODES, NODE, "", {"status": {"capacity": devices, "allocatable": devices}}, subresource="status")


def _start(jobs: NodeJobs, name: str, workers: int) -> NodeJob:
    return jobs.start(name, workers=workers, limits={DEVICE: "1"})


def _was_refused(pod: dict[str, Any]) -> bool:
    """Return whether a scheduler has reported a pod as unschedulable."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def _list_bound(job: NodeJob) -> list[str]:
    """Return the names of a job's pods that have a node."""
    pods = job.jobs.api.list(PODS, job.jobs.namespace, labels=f"{JOB_LABEL}={job.name}")
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
