"""A job's Workload in Kueue: manifest, admission and reported status. Pure.

Kueue's `externalFrameworks` builds no controller: the operator does for MSJobs what Kueue's job framework does for
Jobs.

- The Workload exists only while the job has no pods, or pods that it admits. A suspended job's Workload, and one whose
  counts or requests are no longer the job's, is deleted once no pod is left; a new one is queued when it is needed.
- An evicted Workload keeps its quota until no pod is left.
- An admitted elastic job may shrink. Its quota is kept, so that it can grow back: `reclaimablePods` cannot be reduced.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_mindspore.canonical import to_canonical_json
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.msjob.api.kueue import (
    KUEUE_GROUP,
    PRIORITY_CLASS_LABEL,
    RESOURCE_FLAVORS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    name_workload,
)
from kfp_mindspore.msjob.api.manifest import format_time, parse_time
from kfp_mindspore.msjob.api.names import FAILED, QUEUE_LABEL, RUNNING, SCHEDULER, SUCCEEDED, WORKER
from kfp_mindspore.msjob.api.status import JobStatus
from kfp_mindspore.msjob.decisions.elastic import get_minimum_workers, get_requested_workers
from kfp_mindspore.msjob.decisions.topology import Member, get_scheduler_port, make_labels
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import POD_SETS_ANNOTATION, PRIORITY_ANNOTATION, References, WorkloadView
from kfp_mindspore.operator.decisions.pods import build_pod, list_members, make_owner_reference
from kfp_mindspore.operator.options import OperatorOptions

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
ADMITTED, EVICTED, FINISHED = "Admitted", "Evicted", "Finished"
_QUOTA_RESERVED, _PODS_READY, _REQUEUED = "QuotaReserved", "PodsReady", "Requeued"
_TOPOLOGY = (f"{KUEUE_GROUP}/podset-", f"{KUEUE_GROUP}/workload")
# Kueue itself requeues what it evicted for other reasons, such as after a delay or when a queue is started again.
_REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
_NOT_READY = "Not all members are running"


def get_queue(job: Mapping[str, Any]) -> str:
    """Return the queue that a job's label names; empty without one."""
    return str((job["metadata"].get("labels") or {}).get(QUEUE_LABEL) or "")


def get_priority_class(job: MSJob) -> tuple[Resource, str] | None:
    """Return the class that gives the Workload its priority: the job's label's, or the first template's."""
    if name := (job.metadata.get("labels") or {}).get(PRIORITY_CLASS_LABEL):
        return WORKLOAD_PRIORITY_CLASSES, str(name)
    specs = (spec.template.get("spec") or {} for spec in job.ms_replica_specs.values())
    names = (str(spec["priorityClassName"]) for spec in specs if spec.get("priorityClassName"))
    name = next(names, None)
    return (PRIORITY_CLASSES, name) if name else None


def explain_unsupported(job: MSJob) -> str:
    """Return which of Kueue's annotations the operator cannot honour; empty for none."""
    for kind, spec in job.ms_replica_specs.items():
        for name in (spec.template.get("metadata") or {}).get("annotations") or {}:
            if name.startswith(_TOPOLOGY):
                where = f"spec.msReplicaSpecs.{kind}.template.metadata.annotations"
                return f"{where}: {name} is not supported; use spec.topologyKey"
    return ""


def compute_digest(job: MSJob) -> str:
    """Return a digest of what the quota is for: counts and resources as in the job.

    Pods also depend on the operator's version: its upgrade must not stop running gangs.
    """
    sets: list[Any] = [get_minimum_workers(job)]
    for kind, spec in sorted(job.ms_replica_specs.items()):
        pod = spec.template["spec"]
        containers = [*pod["containers"], *(pod.get("initContainers") or ())]
        sets.append([kind, spec.replicas, [item.get("resources") for item in containers]])
    return hashlib.sha256(to_canonical_json(sets).encode()).hexdigest()[:16]


def build_workload(job: MSJob, priority: int | None, options: OperatorOptions) -> dict[str, Any]:
    """Return the manifest of a job's Workload.

    Args:
        job: The job, as read from the API server (with a uid).
        priority: The value of the class from `get_priority_class`; None without one.
        options: The operator's options.
    """
    spec: dict[str, Any] = {
        "queueName": get_queue({"metadata": job.metadata}),
        "podSets": [_build_pod_set(job, name, members, options) for name, members in _list_pod_sets(job).items()],
    }
    annotations = {POD_SETS_ANNOTATION: compute_digest(job)}
    if (found := get_priority_class(job)) is not None and priority is not None:
        resource, name = found
        spec["priorityClassRef"] = {"group": resource.group, "kind": resource.kind, "name": name}
        spec["priority"] = priority
        annotations[PRIORITY_ANNOTATION] = name
    owner = make_owner_reference(job)
    labels = {key: value for key, value in make_labels(job.name, SCHEDULER, 0).items() if "replica" not in key}
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": name_workload(job.name),
            "namespace": job.namespace,
            "labels": {**labels, f"{KUEUE_GROUP}/job-uid": owner["uid"]},
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def is_outdated(workload: WorkloadView, job: MSJob) -> bool:
    """Return whether a Workload is no longer the job's; queue and priority class count until quota is reserved.

    Args:
        workload: The job's Workload.
        job: The job.
    """
    if workload.has(FINISHED) or workload.digest != compute_digest(job):
        return True
    found = get_priority_class(job)
    wanted = (get_queue({"metadata": job.metadata}), found[1] if found else "")
    return not workload.has(_QUOTA_RESERVED) and (workload.queue, workload.priority_class) != wanted


def explain_hold(workload: WorkloadView | None, job: MSJob) -> str:
    """Return why a job may have no pods; empty once it is admitted.

    Args:
        workload: The job's Workload.
        job: The job.
    """
    if workload is None or workload.deleting:
        return "has no Workload yet"
    if workload.has(EVICTED) and workload.has(_QUOTA_RESERVED):
        return _get_message(workload, EVICTED)
    if is_outdated(workload, job):
        return "its Workload was made for other counts, resources, or another queue or priority class"
    if workload.has(ADMITTED):
        return ""
    if workload.has(_QUOTA_RESERVED):
        checks = [item for item in workload.status.get("admissionChecks") or [] if item.get("state") != "Ready"]
        texts = [f"{item['name']}: {item.get('message') or item.get('state')}" for item in checks]
        return "quota is reserved; admission checks: " + "; ".join(texts)
    evicted = f" ({_get_message(workload, EVICTED)})" if workload.has(EVICTED) else ""
    if not workload.is_active:
        return f"the Workload is deactivated{evicted}"
    return _get_message(workload, _QUOTA_RESERVED) or f"Kueue has not looked at Workload {workload.name} yet"


def get_admitted_workers(workload: WorkloadView | None) -> int | None:
    """Return the worker count that Kueue has admitted; None before."""
    if workload is None or not workload.has(ADMITTED):
        return None
    counts = [item.get("count") for item in _list_assignments(workload) if item["name"] == WORKER.lower()]
    return counts[0] if counts else None


def list_flavors(workload: WorkloadView) -> list[str]:
    """Return the names of the ResourceFlavors that an admitted Workload's pods use."""
    return sorted({name for item in _list_assignments(workload) for name in (item.get("flavors") or {}).values()})


def place_pod(pod: dict[str, Any], workload: WorkloadView, pod_set: str, references: References) -> str:
    """Add the flavors' node labels and tolerations, and the admission checks' updates, to a pod.

    Args:
        pod: The manifest, which is changed.
        workload: The admitted Workload.
        pod_set: The pod set's name.
        references: The Workload's flavors.

    Returns:
        A contradiction between two of them, in a sentence; empty without one.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    updates: list[Mapping[str, Any]] = [{"labels": {f"{KUEUE_GROUP}/podset": pod_set}}]
    for item in _list_assignments(workload):
        if item["name"] == pod_set:
            for name in sorted(set((item.get("flavors") or {}).values())):
                flavor = references[(RESOURCE_FLAVORS, name)]
                assert not isinstance(flavor, str)
                found = flavor.get("spec") or {}
                # The flavor was chosen for the template's own selector.
                updates.append(
                    {"nodeSelector": found.get("nodeLabels") or {}, "tolerations": found.get("tolerations") or []}
                )
    for check in workload.status.get("admissionChecks") or []:
        updates += [item for item in check.get("podSetUpdates") or [] if item.get("name") == pod_set]
    for update in updates:
        for target, field in ((metadata, "labels"), (metadata, "annotations"), (spec, "nodeSelector")):
            values, added = dict(target.get(field) or {}), update.get(field) or {}
            for name, value in added.items():
                if values.setdefault(name, value) != value:
                    return f"Kueue sets {field} {name}={value} for pod set {pod_set}, whose pods have {values[name]}"
            if added:
                target[field] = values
        tolerations = list(spec.get("tolerations") or [])
        spec["tolerations"] = tolerations + [
            item for item in update.get("tolerations") or [] if item not in tolerations
        ]
    return ""


def build_status_patch(
    workload: WorkloadView, status: JobStatus, *, has_pods: bool, now: datetime.datetime
) -> dict[str, Any] | None:
    """Return the merge patch that a Workload's status needs; None for none.

    Args:
        workload: The job's Workload.
        status: The job's new status.
        has_pods: Whether the job has pods.
        now: The present time.
    """
    if workload.has(FINISHED) or workload.deleting:
        return None
    patch: dict[str, Any] = {}
    changes: list[tuple[str, bool, str, str]] = []
    ended = next((status.get_condition(name) for name in (SUCCEEDED, FAILED) if status.has(name)), None)
    if ended is not None:
        changes.append((FINISHED, True, ended.type, ended.message or ""))
    elif workload.has(EVICTED) and workload.has(_QUOTA_RESERVED) and not has_pods:
        evicted = workload.get_condition(EVICTED)
        reason, message = evicted.get("reason") or "", evicted.get("message") or ""
        changes += [
            (_REQUEUED, reason in _REQUEUED_AT_ONCE, reason, message),
            (_QUOTA_RESERVED, False, "Pending", message),
        ]
        patch["admission"] = None
        if workload.has(ADMITTED):
            changes.append((ADMITTED, False, "NoReservation", "The workload has no reservation"))
            since = parse_time(workload.get_condition(ADMITTED).get("lastTransitionTime")) or now
            past = workload.status.get("accumulatedPastExecutionTimeSeconds") or 0
            patch["accumulatedPastExecutionTimeSeconds"] = past + max(0, int((now - since).total_seconds()))
        if workload.get_condition(_PODS_READY):
            changes.append((_PODS_READY, False, "WaitForStart", _NOT_READY))
    elif (ready := _decide_ready(workload, is_running=status.has(RUNNING))) is not None:
        changes.append(ready)
    conditions = {item["type"]: item for item in workload.status.get("conditions") or []}
    before = dict(conditions)
    for kind, holds, reason, message in changes:
        found, value = before.get(kind, {}), "True" if holds else "False"
        if (found.get("status"), found.get("reason")) != (value, reason):
            is_kept = found.get("status") == value
            conditions[kind] = {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": message,
                "lastTransitionTime": found["lastTransitionTime"] if is_kept else format_time(now),
                "observedGeneration": workload.generation,
            }
    return {**patch, "conditions": list(conditions.values())} if conditions != before else None


def _decide_ready(workload: WorkloadView, *, is_running: bool) -> tuple[str, bool, str, str] | None:
    """Return the condition PodsReady, with the reasons by which Kueue chooses a timeout."""
    before = workload.get_condition(_PODS_READY)
    was, reason = before.get("status") == "True", before.get("reason")
    if not workload.has(ADMITTED):
        return (_PODS_READY, False, "WaitForStart", _NOT_READY) if before else None
    if is_running:
        recovered = reason in ("WaitForRecovery", "Recovered")
        return _PODS_READY, True, "Recovered" if recovered else "Started", "All members are running"
    if was or reason == "WaitForRecovery":
        return _PODS_READY, False, "WaitForRecovery", _NOT_READY
    return _PODS_READY, False, "WaitForStart", _NOT_READY


def _list_pod_sets(job: MSJob) -> dict[str, list[Member]]:
    sets: dict[str, list[Member]] = {}
    for member in list_members(job, "", get_scheduler_port(job)):
        sets.setdefault(member.replica_type.lower(), []).append(member)
    return sets


def _get_minimum(job: MSJob, pod_set: str) -> int | None:
    minimum = get_minimum_workers(job)
    return minimum if pod_set == WORKER.lower() and minimum < get_requested_workers(job) else None


def _build_pod_set(job: MSJob, name: str, members: Sequence[Member], options: OperatorOptions) -> dict[str, Any]:
    pod = build_pod(job, members[0], workers=len(members), host="", attempt=0, restarts=0, options=options)
    for container in pod["spec"]["containers"]:
        # Differs between members.
        container.pop("env", None)
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    minimum = _get_minimum(job, name)
    own = {} if minimum is None else {"minCount": minimum}
    return {"name": name, "count": len(members), "template": template, **own}


def _list_assignments(workload: WorkloadView) -> Iterator[Mapping[str, Any]]:
    yield from (workload.status.get("admission") or {}).get("podSetAssignments") or []


def _get_message(workload: WorkloadView, condition: str) -> str:
    return str(workload.get_condition(condition).get("message") or "")
