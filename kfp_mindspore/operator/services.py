"""What a job has besides its pods: the Service of its scheduler, and the PodGroup of a gang scheduler. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from kfp_mindspore.msjob.layout import Member, make_labels
from kfp_mindspore.msjob.names import PORT_NAME, SCHEDULER
from kfp_mindspore.msjob.types import MSJob, SchedulingPolicy
from kfp_mindspore.operator.observed import PodGroupView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.pods import make_owner, read_requests
from kfp_mindspore.operator.quantities import add_up

API_VERSIONS = {"volcano": "scheduling.volcano.sh/v1beta1", "scheduler-plugins": "scheduling.x-k8s.io/v1alpha1"}


def name_service(job_name: str) -> str:
    """Return the name of a job's Service, which is that of its scheduler's pod."""
    return f"{job_name}-scheduler-0"


def build_service(job: MSJob, port: int) -> dict[str, Any]:
    """Return the Service of a job's scheduler on the wire.

    Its members need the cluster IP, not the name, since MindSpore takes no names; and they look for the scheduler
    before its pod counts as ready.

    Args:
        job: The job, as read from the API server (with a uid).
        port: The port the scheduler listens on.
    """
    labels = make_labels(job.name, SCHEDULER, 0)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name_service(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [make_owner(job)],
        },
        "spec": {
            "type": "ClusterIP",
            "selector": labels,
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": PORT_NAME, "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": "tcp"},
            ],
        },
    }


def build_pod_group(job: MSJob, members: Sequence[Member], options: Options) -> dict[str, Any]:
    """Return a job's PodGroup on the wire.

    Args:
        job: The job, as read from the API server (with a uid).
        members: Its members.
        options: The operator's choices; they name a gang scheduler.
    """
    policy = _find_policy(job)
    minimum = find_minimum(job, len(members))
    spec: dict[str, Any] = {"minMember": minimum}
    if resources := copy.deepcopy(policy.min_resources) or _sum_requests(job, members[:minimum], options):
        spec["minResources"] = resources
    if options.gang_scheduler == "volcano":
        if policy.queue:
            spec["queue"] = policy.queue
        if policy.priority_class:
            spec["priorityClassName"] = policy.priority_class
    elif policy.schedule_timeout_seconds is not None:
        spec["scheduleTimeoutSeconds"] = policy.schedule_timeout_seconds
    return {
        "apiVersion": API_VERSIONS[options.gang_scheduler],
        "kind": "PodGroup",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": {
                key: value for key, value in make_labels(job.name, SCHEDULER, 0).items() if "replica" not in key
            },
            "ownerReferences": [make_owner(job)],
        },
        "spec": spec,
    }


def _sum_requests(job: MSJob, members: Sequence[Member], options: Options) -> dict[str, Any]:
    """Return what the members ask for, where the gang scheduler needs to be told."""
    if options.gang_scheduler == "scheduler-plugins":
        # A pod that it refuses by this sum is not looked at again when room comes free, but with its next flush of
        # what waits (5 minutes); one that it refuses for want of a node is.
        return {}
    return add_up(read_requests(job, member) for member in members)


def find_minimum(job: MSJob, members: int) -> int:
    """Return how many pods must be admitted together: `schedulingPolicy.minAvailable`, at most and by default all."""
    return min(_find_policy(job).min_available or members, members)


def admits_pods(group: PodGroupView, options: Options) -> bool:
    """Tell whether pods may be made: Volcano first puts a group in its queue, and lets nobody in before."""
    return options.gang_scheduler != "volcano" or group.phase not in ("", "Pending")


def _find_policy(job: MSJob) -> SchedulingPolicy:
    return job.effective_run_policy.scheduling_policy or SchedulingPolicy()
