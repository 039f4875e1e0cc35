"""Manifests for a job's Service, EndpointSlice and PodGroup. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any

from kfp_mindspore.kube.quantities import sum_resources
from kfp_mindspore.msjob.api.names import OPERATOR_LABEL, PORT_NAME, SCHEDULER
from kfp_mindspore.msjob.api.spec import SchedulingPolicy
from kfp_mindspore.msjob.decisions.elastic import get_minimum_workers, get_requested_workers
from kfp_mindspore.msjob.decisions.requests import get_requests
from kfp_mindspore.msjob.decisions.topology import Member, make_labels
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import EndpointSliceView, PodGroupView, PodView
from kfp_mindspore.operator.decisions.pods import make_owner_reference
from kfp_mindspore.operator.options import OperatorOptions, get_pod_groups


def get_service_name(job_name: str) -> str:
    """Return a job's Service name, which equals the scheduler pod's name."""
    return f"{job_name}-scheduler-0"


def build_service(job: MSJob, port: int) -> dict[str, Any]:
    """Return the Service manifest for a job's scheduler.

    The members need the cluster IP, not the name, since MindSpore accepts no host names. It has no selector: with one,
    Kubernetes' controllers write two objects for each Service, twice, whose default rate limits allow ten jobs a
    second. `build_endpoint_slice` builds the only endpoint.

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


def get_address(scheduler: PodView, cluster_ip: str) -> str:
    """Return the scheduler pod's address in the Service's IP family; empty while it has none."""
    family = ip_address(cluster_ip).version
    return next((address for address in scheduler.addresses if ip_address(address).version == family), "")


def is_stale_endpoint(
    endpoint: EndpointSliceView, pods: Iterable[PodView], cluster_ip: str = "", port: int | None = None
) -> bool:
    """Return whether an EndpointSlice does not have a live scheduler's address: another pod may soon have that address.

    A terminating scheduler's endpoint is kept, since the gang may be saving; a terminated scheduler's is stale.

    Args:
        endpoint: The EndpointSlice.
        pods: All the job's pods.
        cluster_ip: The job's Service address; empty to check the pod only.
        port: The port the scheduler listens on.
    """
    scheduler = next((pod for pod in pods if pod.uid == endpoint.pod), None)
    if scheduler is None or scheduler.is_finished:
        return True
    return bool(cluster_ip) and (endpoint.address, endpoint.port) != (get_address(scheduler, cluster_ip), port)


def build_endpoint_slice(job: MSJob, scheduler: PodView, address: str, port: int) -> dict[str, Any]:
    """Return the EndpointSlice manifest for a job's Service.

    The endpoint is always ready, since the members connect to the scheduler before the pod is ready.

    Args:
        job: The job, as read from the API server (with a uid).
        scheduler: The scheduler's pod.
        address: The pod's IP address.
        port: The port the scheduler listens on.
    """
    metadata = _make_metadata(job)
    metadata["labels"] |= {
        "kubernetes.io/service-name": get_service_name(job.name),
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


def build_pod_group(job: MSJob, members: Sequence[Member], options: OperatorOptions) -> dict[str, Any]:
    """Return a job's PodGroup manifest.

    Args:
        job: The job, as read from the API server (with a uid).
        members: The job's members.
        options: The operator's options, with a gang scheduler.
    """
    groups = get_pod_groups(options.gang_scheduler)
    assert groups is not None, "a gang scheduler is configured"
    policy = _get_scheduling_policy(job)
    minimum = get_min_members(job, len(members))
    spec: dict[str, Any] = {"minMember": minimum}
    if resources := copy.deepcopy(policy.min_resources) or _compute_min_resources(job, members[:minimum], options):
        spec["minResources"] = resources
    if options.gang_scheduler == "volcano":
        if policy.queue:
            spec["queue"] = policy.queue
        if policy.priority_class:
            spec["priorityClassName"] = policy.priority_class
    elif policy.schedule_timeout_seconds is not None:
        spec["scheduleTimeoutSeconds"] = policy.schedule_timeout_seconds
    return {
        "apiVersion": groups.api_version,
        "kind": "PodGroup",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": {
                key: value for key, value in make_labels(job.name, SCHEDULER, 0).items() if "replica" not in key
            },
            "ownerReferences": [make_owner_reference(job)],
        },
        "spec": spec,
    }


def _compute_min_resources(job: MSJob, members: Sequence[Member], options: OperatorOptions) -> dict[str, Any]:
    """Return the members' total requests; empty for scheduler-plugins."""
    if options.gang_scheduler == "scheduler-plugins":
        # coscheduling 0.32: pods refused by minResources are retried only when the unschedulable queue is next flushed
        # (5 minutes), pods refused for lack of a node as soon as resources are released.
        return {}
    return sum_resources(get_requests(job, member) for member in members)


def get_min_members(job: MSJob, members: int) -> int:
    """Return the PodGroup's minMember: `schedulingPolicy.minAvailable`, at most and by default all members.

    An elastic job needs only minReplicas workers.
    """
    optional = get_requested_workers(job) - get_minimum_workers(job)
    return min(_get_scheduling_policy(job).min_available or max(1, members - optional), members)


def is_admitted(group: PodGroupView, options: OperatorOptions) -> bool:
    """Return whether pods may be created: Volcano refuses pods in groups that it has not put in a queue."""
    return options.gang_scheduler != "volcano" or group.phase not in ("", "Pending")


def _make_metadata(job: MSJob) -> dict[str, Any]:
    return {
        "name": get_service_name(job.name),
        "namespace": job.namespace,
        "labels": make_labels(job.name, SCHEDULER, 0),
        "ownerReferences": [make_owner_reference(job)],
    }


def _get_scheduling_policy(job: MSJob) -> SchedulingPolicy:
    return job.effective_run_policy.scheduling_policy or SchedulingPolicy()
