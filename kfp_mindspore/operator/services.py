"""What a job has besides its pods: its scheduler's Service and EndpointSlice, a gang scheduler's PodGroup. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any

from kfp_mindspore.msjob.names import OPERATOR_LABEL, PORT_NAME, SCHEDULER
from kfp_mindspore.msjob.spec import SchedulingPolicy
from kfp_mindspore.msjob.topology import Member, make_labels
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.observed import EndpointSliceView, PodGroupView, PodView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.pods import make_owner, read_requests
from kfp_mindspore.operator.quantities import add_up

API_VERSIONS = {"volcano": "scheduling.volcano.sh/v1beta1", "scheduler-plugins": "scheduling.x-k8s.io/v1alpha1"}


def name_service(job_name: str) -> str:
    """Return the name of a job's Service, which is that of its scheduler's pod."""
    return f"{job_name}-scheduler-0"


def build_service(job: MSJob, port: int) -> dict[str, Any]:
    """Return the Service of a job's scheduler on the wire.

    Its members need the cluster IP, not the name, since MindSpore takes no names. It has no selector: with one,
    Kubernetes' controllers write two objects for it, each twice, which by their default limits is ten jobs a second;
    `build_endpoint_slice` makes the one object that leads to the scheduler.

    Args:
        job: The job, as read from the API server (with a uid).
        port: The port the scheduler listens on.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _make_metadata(job),
        "spec": {
            "type": "ClusterIP",
            "ports": [
                {"name": PORT_NAME, "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": "tcp"},
            ],
        },
    }


def find_address(scheduler: PodView, cluster_ip: str) -> str:
    """Return the scheduler's address of the IP family of its Service; empty while it has none."""
    family = ip_address(cluster_ip).version
    return next((address for address in scheduler.addresses if ip_address(address).version == family), "")


def leads_astray(
    endpoint: EndpointSliceView, pods: Iterable[PodView], cluster_ip: str = "", port: int | None = None
) -> bool:
    """Tell whether an EndpointSlice leads to no pod of its job: the address may be somebody else's soon.

    To a scheduler that is ending it leads on, since its gang may be saving; not to one that is over.

    Args:
        endpoint: The EndpointSlice.
        pods: All pods of the job.
        cluster_ip: Of its Service; empty when it is not known, and only the pod is looked at.
        port: The port the scheduler listens on.
    """
    scheduler = next((pod for pod in pods if pod.uid == endpoint.pod), None)
    if scheduler is None or scheduler.is_over:
        return True
    return bool(cluster_ip) and (endpoint.address, endpoint.port) != (find_address(scheduler, cluster_ip), port)


def build_endpoint_slice(job: MSJob, scheduler: PodView, address: str, port: int) -> dict[str, Any]:
    """Return the EndpointSlice of a job's Service on the wire.

    The members look for the scheduler before its pod counts as ready, so its endpoint always does.

    Args:
        job: The job, as read from the API server (with a uid).
        scheduler: The scheduler's pod.
        address: Its IP address.
        port: The port the scheduler listens on.
    """
    metadata = _make_metadata(job)
    metadata["labels"] |= {
        "kubernetes.io/service-name": name_service(job.name),
        "endpointslice.kubernetes.io/managed-by": metadata["labels"][OPERATOR_LABEL],
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": f"IPv{ip_address(address).version}",
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {
                    "kind": "Pod",
                    "namespace": job.namespace,
                    "name": scheduler.name,
                    "uid": scheduler.uid,
                },
            }
        ],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP", "appProtocol": "tcp"}],
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


def _make_metadata(job: MSJob) -> dict[str, Any]:
    return {
        "name": name_service(job.name),
        "namespace": job.namespace,
        "labels": make_labels(job.name, SCHEDULER, 0),
        "ownerReferences": [make_owner(job)],
    }


def _find_policy(job: MSJob) -> SchedulingPolicy:
    return job.effective_run_policy.scheduling_policy or SchedulingPolicy()
