"""Gang scheduler resources."""

from __future__ import annotations

from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.operator.options import GangScheduler

_POD_GROUPS: dict[GangScheduler, Resource] = {
    "volcano": Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
    "scheduler-plugins": Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
}


def get_pod_groups(gang_scheduler: GangScheduler) -> Resource | None:
    """Return a gang scheduler's PodGroup resource, or None without one."""
    return _POD_GROUPS.get(gang_scheduler)
