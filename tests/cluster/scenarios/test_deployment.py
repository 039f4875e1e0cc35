"""The installed operator: a Deployment of two replicas with the installed rights only."""

from __future__ import annotations

import signal
import subprocess
import sys

from kfp_mindspore.kube.resources import PODS, Resource
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.support.kube.node_jobs import NodeJobs
from tests.support.kube.operators import SECONDS, wait_for

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


def test_replica_takes_over_from_killed_leader(own_cluster: NodeCluster, operator_image: str) -> None:
    with own_cluster.make_namespace("tenant") as tenant, own_cluster.make_namespace("system") as system:
        words = ["--image", operator_image, "--operator-namespace", system, "--namespace", tenant]
        command = [sys.executable, "-m", "kfp_mindspore.cli.main", "operator", "install", *words]
        subprocess.run([*command, "--kubeconfig", str(own_cluster.kubeconfig)], check=True, timeout=SECONDS)
        jobs = NodeJobs(own_cluster, tenant)
        _wait_until_two_are_ready(jobs, system)
        job = jobs.run("deployed", workers=2)
        leader = _find_leader(jobs, system)
        # Its name is the pod's and something that no other process has.
        victim = own_cluster.find_processes(system, leader.partition("_")[0])[0]
        job.kill("deployed-worker-0")
        victim.send(signal.SIGKILL)
        # The termination is counted once, by either replica.
        job.wait_restart()
        job.complete(restarts=1)
        wait_for(lambda: _find_leader(jobs, system) != leader, lambda: f"{leader} still leads")
        _wait_until_two_are_ready(jobs, system)
        job.delete()


def _wait_until_two_are_ready(jobs: NodeJobs, system: str) -> None:
    pods: dict[str, object] = {}
    for objects in jobs.api.watch(PODS, system, timeout=SECONDS * 2):
        pods = {name: pod.get("status") for name, pod in objects.items()}
        statuses = [(pod.get("status") or {}).get("conditions") or [] for pod in objects.values()]
        if sum(any(one["type"] == "Ready" and one["status"] == "True" for one in each) for each in statuses) == 2:
            return
    raise AssertionError(f"the operator's pods are not ready: {pods}")


def _find_leader(jobs: NodeJobs, system: str) -> str:
    """Return who holds the Lease."""
    (lease,) = jobs.api.list(LEASES, system)
    return str(lease["spec"]["holderIdentity"])
