"""The kinds of objects that the operator reads and writes, beside those that `kfp_mindspore.kube` names."""

from __future__ import annotations

from kfp_mindspore.kube import DEFINITIONS, EVENTS, PODS, SERVICES, Resource
from kfp_mindspore.msjob.names import GROUP, KIND, PLURAL
from kfp_mindspore.operator.options import GangScheduler
from kfp_mindspore.operator.services import API_VERSIONS

__all__ = [
    "DEFINITIONS",
    "ENDPOINT_SLICES",
    "EVENTS",
    "JOBS",
    "LEASES",
    "PODS",
    "SERVICES",
    "Resource",
    "find_pod_groups",
]

JOBS = Resource(GROUP, "v1", PLURAL, KIND)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


def find_pod_groups(gang_scheduler: GangScheduler) -> Resource | None:
    """Return the PodGroups of a gang scheduler, or None without one."""
    group, _, version = API_VERSIONS.get(gang_scheduler, "").partition("/")
    return Resource(group, version, "podgroups", "PodGroup") if group else None
