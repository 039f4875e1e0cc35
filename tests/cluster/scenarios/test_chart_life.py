"""A release of the Helm chart on a node: changed and removed while a job trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kfp_mindspore.inference.backends.rollout import DEPLOYMENTS
from kfp_mindspore.kube.resources import DEFINITIONS, NAMESPACES, PODS
from kfp_mindspore.msjob.api.names import JOB_LABEL, MSJOBS
from kfp_mindspore.operator.install.options import NAME as OPERATOR
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.support.kube.helm import CHART, Document, Helm
from tests.support.kube.node_jobs import NodeJob, NodeJobs

RELEASE = "kfp-mindspore"
WAIT = ("--wait", "--timeout", "5m")
CHANGED = {"podSecurity": "none", "istioSidecar": True, "replicas": 1}


@pytest.fixture
def release(helm: Helm, own_cluster: NodeCluster) -> Helm:
    return replace(helm, kubeconfig=own_cluster.kubeconfig)


def test_job_trains_on_through_upgrade_rollback_and_reinstallation(
    own_cluster: NodeCluster, operator_image: str, release: Helm
) -> None:
    with own_cluster.make_namespace("tenant") as tenant:
        # The chart creates it.
        system = f"{tenant}-system"
        values = {"image": operator_image, "namespace": system, "watched": [tenant]}
        jobs = NodeJobs(own_cluster, tenant)
        release.run("install", RELEASE, str(CHART), *WAIT, operator=values)
        installed = read_operator(jobs, system)
        job = jobs.run("trained", workers=2)
        pods = list_containers(job)
        assert len(pods) == 3

        release.run("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", *WAIT, operator=CHANGED)
        assert read_operator(jobs, system) == (1, [*installed[1], "--pod-security=none", "--istio-sidecar"])
        other = jobs.run("after-upgrade", workers=1)
        (pod,) = jobs.api.list(PODS, tenant, labels=f"{JOB_LABEL}={other.name}")
        assert "runAsNonRoot" not in pod["spec"].get("securityContext", {})
        other.complete(restarts=0)
        other.delete()
        check_progress(job, pods)

        release.run("rollback", RELEASE, "1", *WAIT)
        assert read_operator(jobs, system) == installed
        check_progress(job, pods)

        kept = release.run("uninstall", RELEASE, "--wait")
        definition = f"{MSJOBS.plural}.{MSJOBS.group}"
        assert f"[CustomResourceDefinition] {definition}" in kept
        assert [item for item in jobs.api.list(NAMESPACES) if item["metadata"]["name"] == system] == []
        stored = jobs.api.get(DEFINITIONS, definition)["metadata"]["uid"]
        check_progress(job, pods)

        release.run("install", RELEASE, str(CHART), *WAIT, operator=values)
        assert jobs.api.get(DEFINITIONS, definition)["metadata"]["uid"] == stored
        check_progress(job, pods)
        job.complete(restarts=0)
        job.delete()
        release.run("uninstall", RELEASE, "--wait")


def read_operator(jobs: NodeJobs, namespace: str) -> tuple[int, list[str]]:
    """Return the operator's replicas and arguments."""
    spec = jobs.api.get(DEPLOYMENTS, OPERATOR, namespace)["spec"]
    return spec["replicas"], spec["template"]["spec"]["containers"][0]["args"]


def list_containers(job: NodeJob) -> dict[str, tuple[str, int]]:
    """Return uid and restart count of a job's pods by name."""
    items: list[Document] = job.jobs.api.list(PODS, job.jobs.namespace, labels=f"{JOB_LABEL}={job.name}")
    return {
        item["metadata"]["name"]: (
            item["metadata"]["uid"],
            sum(status["restartCount"] for status in item["status"]["containerStatuses"]),
        )
        for item in items
    }


def check_progress(job: NodeJob, pods: dict[str, tuple[str, int]]) -> None:
    """Check that a job trains on in the same containers, and that no step was done again."""
    job.wait_steps()
    assert list_containers(job) == pods
    assert job.count_lost_steps() == 0
