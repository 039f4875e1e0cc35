"""The custom resources that the operator reads and writes."""

from __future__ import annotations

from kfp_mindspore.kube import Resource
from kfp_mindspore.msjob.names import GROUP, KIND, PLURAL
from kfp_mindspore.operator.options import GangScheduler
from kfp_mindspore.operator.services import API_VERSIONS

JOBS = Resource(GROUP, "v1", PLURAL, KIND)


def get_pod_groups(gang_scheduler: GangScheduler) -> Resource | None:
    """Return the PodGroup resource of a gang scheduler, or None without one."""
    group, _, version = API_VERSIONS.get(gang_scheduler, "").partition("/")
    return Resource(group, version, "podgroups", "PodGroup") if group else None
