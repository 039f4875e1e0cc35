"""Kueue's API, as version 0.15 serves it: resources, labels and the name of a job's Workload."""

from __future__ import annotations

from kfp_mindspore.kube.resources import Resource

KUEUE_GROUP = "kueue.x-k8s.io"
_VERSION = "v1beta2"
WORKLOADS = Resource(KUEUE_GROUP, _VERSION, "workloads", "Workload")
LOCAL_QUEUES = Resource(KUEUE_GROUP, _VERSION, "localqueues", "LocalQueue")
CLUSTER_QUEUES = Resource(KUEUE_GROUP, _VERSION, "clusterqueues", "ClusterQueue", namespaced=False)
RESOURCE_FLAVORS = Resource(KUEUE_GROUP, _VERSION, "resourceflavors", "ResourceFlavor", namespaced=False)
WORKLOAD_PRIORITY_CLASSES = Resource(
    KUEUE_GROUP, _VERSION, "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)
# A WorkloadPriorityClass's name, as a label on the job.
PRIORITY_CLASS_LABEL = f"{KUEUE_GROUP}/priority-class"


def name_workload(job_name: str) -> str:
    """Return the name of a job's Workload."""
    return f"msjob-{job_name}"
