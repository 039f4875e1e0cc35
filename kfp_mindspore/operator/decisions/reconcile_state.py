"""One reconciliation's state: a job's observed objects, and the status and actions decided so far."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES, Resource
from kfp_mindspore.msjob.api.manifest import format_time, parse_lease
from kfp_mindspore.msjob.api.names import CLEAN_POD_POLICIES, FAILED, LEASE_ANNOTATION, MSJOBS, RESTARTING, SUCCEEDED
from kfp_mindspore.msjob.api.waiting import NAME_TAKEN, NAME_TERMINATING, QUEUED, Waiting
from kfp_mindspore.msjob.decisions.restart import START_ERROR
from kfp_mindspore.operator.decisions.actions import Action, Delete, EmitEvent, Read, RequeueAt
from kfp_mindspore.operator.decisions.kueue import get_queue
from kfp_mindspore.operator.decisions.observed import PROBE, SPARE, ObjectView, Observed, PodView
from kfp_mindspore.operator.decisions.services import get_service_name, is_stale_endpoint
from kfp_mindspore.operator.decisions.status import finish_replica_counts, read_status, set_condition
from kfp_mindspore.operator.options import OperatorOptions, get_pod_groups

# No watch reports when objects without the job's label are deleted, nor changes of cluster-wide ones.
RETRY_SECONDS = 15
# Two renewal intervals.
_RENEWAL_GRACE = datetime.timedelta(seconds=40)
# Failures after which the peers have nothing to save.
LEASE_EXPIRED = "LeaseExpired"
_ENDED_AT_ONCE = frozenset({"JobFailed", "BackoffLimitExceeded", START_ERROR})


class ReconcileState:
    """State during one pass over a job.

    Args:
        document: The job's document.
        observed: The observed state.
        now: The present time.
        options: The operator's options.
    """

    def __init__(
        self, document: Mapping[str, Any], observed: Observed, now: datetime.datetime, options: OperatorOptions
    ):
        self.observed = observed
        self.now = now
        self.options = options
        self.pod_groups = get_pod_groups(options.gang_scheduler)
        self.uid = str(document["metadata"].get("uid", ""))
        self.name = str(document["metadata"]["name"])
        self.policy = read_policy(document)
        self.lease: str | None = (document["metadata"].get("annotations") or {}).get(LEASE_ANNOTATION)
        self.status = read_status(document.get("status"))
        self.pods = tuple(pod for pod in observed.pods if pod.owner == self.uid)
        named = get_service_name(self.name)
        services = [item for item in observed.services if item.name == named]
        self.service = next((item for item in services if item.owner == self.uid), None)
        endpoints = [item for item in observed.endpoint_slices if item.name == named]
        self.endpoint = next((item for item in endpoints if item.owner == self.uid), None)
        self.foreign = [
            (kind, item)
            for kind, items in (("Service", services), ("EndpointSlice", endpoints))
            for item in items
            if item.owner != self.uid
        ]
        self.attempt = max([self.status.attempt or 0, *(pod.attempt for pod in self.pods)])
        self.restarts = max([self.status.restarts or 0, *(pod.restarts for pod in self.pods)])
        self.spares = tuple(pod for pod in self.pods if pod.member.startswith(f"{self.name}-{SPARE}-"))
        self.queue = get_queue(document)
        named_workload = observed.workload
        self.workload = named_workload if named_workload and named_workload.owner == self.uid else None
        self.actions: list[Action] = []
        self.waiting: Waiting | None = None

    @property
    def probes(self) -> tuple[PodView, ...]:
        """The present attempt's probes of an elastic job, which are not members of the gang."""
        return tuple(
            pod for pod in self.pods if pod.attempt == self.attempt and pod.name.startswith(f"{self.name}-{PROBE}-")
        )

    def finish(self, condition: str, reason: str, message: str) -> None:
        """Set Succeeded or Failed, with the completion time."""
        self.set_condition(condition, reason, message)
        self.status.completion_time = self.now
        finish_replica_counts(self.status, succeeded=condition == SUCCEEDED)

    def delete(self, resource: Resource | None, view: ObjectView | None, grace_seconds: int | None = None) -> None:
        """Delete an object that the job owns, unless it is being deleted.

        A pod whose node no longer reports is removed at once: the kubelet cannot confirm that the processes ended.
        """
        if resource is None or view is None or view.owner != self.uid:
            return
        if isinstance(view, PodView) and view.lost:
            self.actions.append(Delete(resource, view.name, view.uid, 0))
        elif not view.deleting:
            self.actions.append(Delete(resource, view.name, view.uid, grace_seconds))

    def read(self, resource: Resource, name: str) -> Mapping[str, Any] | None:
        """Return a cluster-wide object; None while it is unknown, which keeps the job waiting."""
        found = self.observed.references.get((resource, name))
        if found is None:
            self.actions.append(Read(resource, name))
            before = self.status
            self.waiting = Waiting(before.waiting_reason or "", before.waiting) if before.waiting else None
        elif isinstance(found, str):
            self.waiting = Waiting(QUEUED, f'queue "{self.queue}": {found}')
            self.actions.append(RequeueAt(self.now + datetime.timedelta(seconds=RETRY_SECONDS)))
        return None if isinstance(found, str) else found

    def report_taken(self, taken: Sequence[tuple[str, ObjectView]]) -> None:
        """Wait because names, given with their kinds, are taken by objects that are not this job's."""
        text = ", ".join(f"{kind} {item.name}" for kind, item in taken)
        self.waiting = Waiting(NAME_TAKEN, f"{text}: exists and does not belong to this job; delete or rename it")
        if all(item.owner for _, item in taken):
            # A job was deleted and created again: its pods end within their grace period.
            owner = "has another owner, such as an earlier job of this name that is being deleted"
            self.waiting = Waiting(NAME_TERMINATING, f"{text}: exists and {owner}")
        self.actions.append(RequeueAt(self.now + datetime.timedelta(seconds=RETRY_SECONDS)))

    def set_condition(self, condition: str, reason: str, message: str, *, holds: bool = True) -> None:
        """Set a condition, and emit an event with the same reason and message."""
        set_condition(self.status, condition, reason, message, self.now, holds=holds)
        self.emit("Warning" if condition in (FAILED, RESTARTING) else "Normal", reason, message)

    def emit(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Emit an event on the job."""
        self.actions.append(EmitEvent(kind, reason, message))

    def is_lease_expired(self) -> bool:
        """Fail a job whose client no longer renews the lease, also while it is suspended."""
        end = parse_lease(self.lease)
        if end is None:
            return False
        # After an API server outage, its client needs time to renew it.
        due = max(end, (self.observed.connected_at or self.now) + _RENEWAL_GRACE)
        if self.now < due:
            self.actions.append(RequeueAt(due))
            return False
        message = f"the lease of MSJob {self.name} expired at {format_time(end)} without renewal by its client"
        self.finish(FAILED, LEASE_EXPIRED, message)
        return True

    def clean_up(self) -> None:
        """Delete a finished job's objects by cleanPodPolicy, and the job after the TTL."""
        # An invalid job's policy may have any value.
        policy = self.policy.get("cleanPodPolicy")
        policy = policy if policy in CLEAN_POD_POLICIES else "Running"
        failed = self.status.get_condition(FAILED)
        reason = failed.reason if failed is not None and failed.status == "True" else ""
        at_once = reason in _ENDED_AT_ONCE
        if reason == LEASE_EXPIRED and policy == "None":
            # Pods without a client must not hold devices.
            policy = "Running"
        for pod in self.pods:
            is_kept = policy == "None" or (policy == "Running" and pod.is_finished)
            if pod.attempt < self.attempt or pod in (*self.probes, *self.spares) or not is_kept:
                self.delete(PODS, pod, self.options.failure_grace_seconds if at_once else None)
        if policy != "None":
            self.delete(ENDPOINT_SLICES, self.endpoint)
            self.delete(SERVICES, self.service)
        elif self.endpoint is not None and is_stale_endpoint(self.endpoint, self.pods):
            self.delete(ENDPOINT_SLICES, self.endpoint)
        self.delete(self.pod_groups, self.observed.pod_group)
        seconds, end = self.policy.get("ttlSecondsAfterFinished"), self.status.completion_time
        if isinstance(seconds, int) and not isinstance(seconds, bool) and end is not None:
            end += datetime.timedelta(seconds=seconds)
            self.actions.append(RequeueAt(end) if self.now < end else Delete(MSJOBS, self.name, self.uid))


def read_policy(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's run policy; the job may be invalid."""
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    return policy if isinstance(policy, Mapping) else {}
