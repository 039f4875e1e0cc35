"""A gang scheduler of its own project: a job gets room for all of its pods, or for none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.kube import PODS, Cluster, Resource
from kfp_mindspore.msjob.names import JOB_LABEL
from kfp_mindspore.operator.resources import find_pod_groups
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import COSCHEDULING_NAMES, find_coscheduling
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.node import NODE
from tests.support.node_jobs import NodeJob, NodeJobs
from tests.support.operators import OperatorProcess

SCHEDULER = "scheduler-plugins-scheduler"
# A device that only this test's pods ask for.
DEVICE = "kfp-mindspore.test/npu"
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


@pytest.fixture(scope="module")
def gang_scheduler(own_cluster: NodeCluster) -> Iterator[None]:
    """Run scheduler-plugins' coscheduling beside Kubernetes' own scheduler, on a node with 3 devices."""
    folder = start(find_coscheduling)
    program, definition = COSCHEDULING_NAMES
    api = Cluster(own_cluster.kubeconfig)
    api.apply(yaml.safe_load((folder / definition).read_text()))
    settings = own_cluster.directory / "coscheduling.yaml"
    settings.write_text(yaml.safe_dump(_configure(own_cluster.kubeconfig)))
    _set_devices(api, 3)
    words = [str(folder / program), f"--config={settings}", "--secure-port=0"]
    own_cluster.daemons.start("coscheduling", words)
    yield
    own_cluster.daemons.stop("coscheduling")
    _set_devices(api, None)


def _configure(kubeconfig: Path) -> dict[str, Any]:
    plugin = {"name": "Coscheduling"}
    profile = {
        "schedulerName": SCHEDULER,
        "plugins": {
            "multiPoint": {"enabled": [plugin]},
            "queueSort": {"enabled": [plugin], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{**plugin, "args": {"permitWaitingTimeSeconds": 5}}],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "profiles": [profile],
    }


@pytest.fixture
def jobs(own_cluster: NodeCluster, gang_scheduler: None, definition: None, tmp_path: Path) -> Iterator[NodeJobs]:
    with own_cluster.make_namespace("gangs") as namespace:
        flags = ("-n", namespace, "--gang-scheduler", "scheduler-plugins")
        with OperatorProcess(own_cluster.kubeconfig, tmp_path / "log", *flags):
            yield NodeJobs(own_cluster, namespace)


def test_a_job_that_finds_no_room_for_all_leaves_the_room_to_others(jobs: NodeJobs) -> None:
    first = _start(jobs, "first", workers=2)
    first.wait("Running")
    large = _start(jobs, "large", workers=3)
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
    groups = find_pod_groups("scheduler-plugins")
    assert groups is not None
    for job in (first, small, large):
        job.delete()
    assert jobs.api.list(groups, jobs.namespace) == []


def _set_devices(api: Cluster, count: int | None) -> None:
    """Say how many devices the node has; None for a node without any."""
    devices = {DEVICE: count and str(count)}
    patch = {"status": {"capacity": devices, "allocatable": devices}}
    api.patch(NODES, NODE, "", patch, subresource="status")


def _start(jobs: NodeJobs, name: str, workers: int) -> NodeJob:
    return jobs.start(name, workers=workers, limits={DEVICE: "1"})


def _was_refused(pod: dict[str, Any]) -> bool:
    """Tell whether a scheduler has looked at a pod and found no room."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def _list_bound(job: NodeJob) -> list[str]:
    """Return the names of a job's pods that have a node."""
    pods = job.jobs.api.list(PODS, job.jobs.namespace, labels=f"{JOB_LABEL}={job.name}")
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
