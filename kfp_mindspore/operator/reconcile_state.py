"""State of one reconciliation: the observed objects of a job, and the status and actions decided so far."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Literal

from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.msjob.names import FAILED, LEASE_ANNOTATION, RESTARTING, SUCCEEDED
from kfp_mindspore.operator.actions import Action, Delete, EmitEvent
from kfp_mindspore.operator.observed import ObjectView, Observed
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.resources import get_pod_groups
from kfp_mindspore.operator.services import get_service_name
from kfp_mindspore.operator.status import finish_replica_counts, read_status, set_condition


class ReconcileState:
    """The state of one pass over a job.

    Args:
        document: The job's document.
        observed: The observed state.
        now: The present time.
        options: The operator's options.
    """

    def __init__(self, document: Mapping[str, Any], observed: Observed, now: datetime.datetime, options: Options):
        self.document = document
        self.observed = observed
        self.now = now
        self.options = options
        self.pod_groups = get_pod_groups(options.gang_scheduler)
        self.uid = str(document["metadata"].get("uid", ""))
        self.name = str(document["metadata"]["name"])
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
        self.actions: list[Action] = []
        self.waiting: str | None = None

    def finish(self, condition: str, reason: str, message: str) -> None:
        """Set Succeeded or Failed, with the completion time."""
        self.set_condition(condition, reason, message)
        self.status.completion_time = self.now
        finish_replica_counts(self.status, succeeded=condition == SUCCEEDED)

    def delete(self, resource: Resource | None, view: ObjectView | None, grace_seconds: int | None = None) -> None:
        """Delete an object that the job owns, unless it is being deleted."""
        if resource is not None and view is not None and view.owner == self.uid and not view.deleting:
            self.actions.append(Delete(resource, view.name, view.uid, grace_seconds))

    def set_condition(self, condition: str, reason: str, message: str, *, holds: bool = True) -> None:
        """Set a condition, and emit an event with its reason and message."""
        set_condition(self.status, condition, reason, message, self.now, holds=holds)
        self.emit("Warning" if condition in (FAILED, RESTARTING) else "Normal", reason, message)

    def emit(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Emit an event of the job."""
        self.actions.append(EmitEvent(kind, reason, message))
