"""Kueue queues: why one cannot start a job, by the objects in the cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from kfp_mindspore.errors import NotFoundError, suggest
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ForbiddenError, NotInstalledError
from kfp_mindspore.kube.quantities import format_quantity, parse_quantity, sum_resources
from kfp_mindspore.msjob.api.kueue import CLUSTER_QUEUES, LOCAL_QUEUES
from kfp_mindspore.msjob.decisions.elastic import get_minimum_workers
from kfp_mindspore.msjob.decisions.requests import get_requests
from kfp_mindspore.msjob.decisions.topology import Endpoints, build_topology
from kfp_mindspore.msjob.types import MSJob

# Kueue counts pods where a queue has a quota of them.
_PODS = "pods"


def explain_queue(cluster: Cluster, name: str, namespace: str, requests: Mapping[str, str] | None = None) -> str:
    """Return why a queue cannot start a job, in a sentence; empty when it can, or when that is unknown.

    Args:
        cluster: The cluster.
        name: The LocalQueue.
        namespace: The job's namespace.
        requests: The job's resources; None for a job whose resources are unknown.

    Raises:
        ForbiddenError: The account may not list LocalQueues.
    """
    try:
        queues = {item["metadata"]["name"]: item for item in cluster.list(LOCAL_QUEUES, namespace)}
    except NotInstalledError:
        return f"queue {name!r}: the cluster does not know {LOCAL_QUEUES.full_name}; install Kueue"
    if name not in queues:
        hint = suggest(name, sorted(queues)) if queues else ""
        return f"queue {name!r}: namespace {namespace} has no such LocalQueue{hint}"
    target = str(queues[name]["spec"].get("clusterQueue") or "")
    shared: Mapping[str, Any] = {}
    # Accounts of namespaces may rarely read what belongs to the cluster; a missing one is in the LocalQueue's status.
    with contextlib.suppress(ForbiddenError, NotFoundError):
        shared = cluster.get(CLUSTER_QUEUES, target)
    # The ClusterQueue's reason is the cause, where both have one.
    for queue, title in ((shared, f"ClusterQueue {target}"), (queues[name], f"LocalQueue {name}")):
        if queue and (reason := _explain_stop(queue)):
            return f"queue {name!r}: {title} starts no job: {reason}"
    if shared and (missing := _explain_quota(shared["spec"], requests or {})):
        return f"queue {name!r}: ClusterQueue {target} can never start the job: {missing}"
    return ""


def sum_requests(job: MSJob) -> dict[str, str]:
    """Return the resources of the smallest gang that a job starts with."""
    members = build_topology(job, Endpoints("", 0), get_minimum_workers(job)).members
    return sum_resources([*(get_requests(job, member) for member in members), {_PODS: len(members)}])


def _explain_stop(queue: Mapping[str, Any]) -> str:
    """Return why a LocalQueue or ClusterQueue admits no workload; empty when it does."""
    policy = queue["spec"].get("stopPolicy") or "None"
    stop = "" if policy == "None" else f"its stopPolicy is {policy}"
    conditions = (queue.get("status") or {}).get("conditions") or []
    inactive = [
        str(item.get("message") or item.get("reason"))
        for item in conditions
        if (item["type"], item["status"]) == ("Active", "False")
    ]
    return ", ".join([*([stop] if stop else []), *inactive])


def _explain_quota(spec: Mapping[str, Any], requests: Mapping[str, str]) -> str:
    """Return the requests above a ClusterQueue's whole quota; empty for one that borrows from a cohort."""
    # `cohort` is v1beta1's name.
    if spec.get("cohortName") or spec.get("cohort"):
        return ""
    quotas: dict[str, Fraction] = {}
    for group in spec.get("resourceGroups") or []:
        for item in (item for flavor in group["flavors"] for item in flavor["resources"]):
            quotas[item["name"]] = quotas.get(item["name"], Fraction(0)) + (parse_quantity(item["nominalQuota"]) or 0)
    if _PODS not in quotas:
        requests = {name: amount for name, amount in requests.items() if name != _PODS}
    return ", ".join(
        f"it requests {amount} {name}, the quota is {format_quantity(quotas.get(name, Fraction(0)))}"
        for name, amount in requests.items()
        if (parse_quantity(amount) or 0) > quotas.get(name, 0)
    )
