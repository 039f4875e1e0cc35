"""An elastic job on a node with too little memory for all of its members."""

from __future__ import annotations

import shutil

from kfp_mindspore.kube.quantities import parse_quantity
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob import build_msjob
from kfp_mindspore.msjob.api.spec import ElasticPolicy
from tests.cluster.infrastructure.images import PYTHON
from tests.support.kube.node_jobs import SCRIPT, NodeJob, NodeJobs

_NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


def test_job_continues_with_one_worker_until_memory_returns(jobs: NodeJobs) -> None:
    (node,) = jobs.api.list(_NODES)
    # Three members fit, but not beside the blocker.
    share = str(int(parse_quantity(node["status"]["allocatable"]["memory"]) * 28 / 100))
    container = {"name": "hold", "image": PYTHON, "command": ["sleep", "3600"]}
    container["resources"] = {"requests": {"memory": share}}
    blocker = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "blocker"}, "spec": {"containers": [container]}}
    jobs.api.create(PODS, blocker, jobs.namespace)
    for pods in jobs.api.watch(PODS, jobs.namespace, fields="metadata.name=blocker", timeout=240):
        if pods.get("blocker", {}).get("spec", {}).get("nodeName"):
            break
    job = NodeJob(jobs, "elastic")
    shutil.copyfile(SCRIPT, job.volume / SCRIPT.name)
    document = build_msjob(
        job.name,
        command=["python", f"{job.mount}/{SCRIPT.name}", job.mount],
        image=PYTHON,
        workers=2,
        namespace=jobs.namespace,
        resources={"requests": {"memory": share}},
    )
    document.elastic_policy = ElasticPolicy(min_replicas=1, grace_seconds=2)
    job.create(document)
    small = job.wait_attempt(1)
    assert (small.status.target_workers, small.status.workers) == (1, "1/2")
    job.wait_until(lambda found: found.status.progress is not None and found.status.progress.step > 0)
    assert [pod.name for pod in job.list_pods()] == ["elastic-worker-0"]

    jobs.api.delete(PODS, "blocker", jobs.namespace, grace_seconds=0)
    grown = job.wait_attempt(2)
    assert (grown.status.target_workers, grown.status.workers, grown.status.restarts) == (None, "2/2", 0)
    job.finish()
    job.wait("Succeeded")
    assert job.count_lost_steps() == 0
    job.check_events(JobScaledDown=1, JobScaledUp=1, JobRestarting=0)
    job.delete()
