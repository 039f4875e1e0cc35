"""A cluster with Kueue: admits and evicts one job's Workload, and refuses what Kueue 0.15 refuses."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.msjob.api.kueue import WORKLOADS
from kfp_mindspore.msjob.api.manifest import format_time
from kfp_mindspore.operator.decisions.actions import Action, Create, Delete, PatchStatus, Read
from kfp_mindspore.operator.decisions.observed import Observed, view_workload
from kfp_mindspore.operator.options import OperatorOptions
from tests.support.kube.simulated_cluster import Cluster

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def explain_missing(resource: Resource, name: str) -> str:
    """Return what the operator's client says of a cluster-wide object that does not exist."""
    kind = resource.full_name
    return f'cannot get {kind} {name!r}: {kind} "{name}" not found'


class KueueCluster(Cluster):
    """A cluster whose job has a queue.

    Args:
        job: The job.
        queue: The value of its label; empty for none.
        options: The operator's choices.
    """

    def __init__(self, job: dict[str, Any], queue: str = "team", options: OperatorOptions | None = None) -> None:
        super().__init__(job, options or OperatorOptions(kueue=True))
        self.workload: dict[str, Any] | None = None
        self.cluster_wide: dict[tuple[str, str], dict[str, Any]] = {}
        self.references: dict[tuple[Resource, str], Any] = {}
        if queue:
            self.set_label(QUEUE_LABEL, queue)

    def observe(self) -> Observed:
        workload = view_workload(self.workload) if self.workload else None
        return dataclasses.replace(super().observe(), workload=workload, references=dict(self.references))

    def settle(self, rounds: int = 8) -> None:
        self.references.clear()
        super().settle(rounds)

    def do(self, action: Action) -> None:
        if isinstance(action, Read):
            missing = explain_missing(action.resource, action.name)
            found = self.cluster_wide.get((action.resource.kind, action.name), missing)
            self.references[(action.resource, action.name)] = found
        elif isinstance(action, PatchStatus):
            self._patch(action)
        elif isinstance(action, Create) and action.resource == WORKLOADS:
            if self.workload is None:
                validate(action.body["spec"])
                self.workload = self._make(action.body)
                self.workload["metadata"] |= {"generation": 1, "resourceVersion": str(next(self._numbers))}
        elif isinstance(action, Delete) and action.resource == WORKLOADS:
            assert not self.pods, "the quota is still in use"
            if self.workload and self.workload["metadata"]["uid"] == action.uid:
                self.workload = None
        else:
            super().do(action)

    def _patch(self, action: PatchStatus) -> None:
        assert self.workload is not None
        metadata, before = self.workload["metadata"], self.workload.get("status") or {}
        if (action.uid, action.version) != (metadata["uid"], metadata["resourceVersion"]):
            return
        after = {key: value for key, value in {**before, **action.status}.items() if value is not None}
        for item in after["conditions"]:
            assert REASON.fullmatch(item["reason"]), item
            assert {"type", "status", "message", "lastTransitionTime"} <= set(item)
        assert after.get("admission") in (None, before.get("admission")), "immutable"
        reserved = {item["type"]: item["status"] for item in after["conditions"]}.get("QuotaReserved") == "True"
        assert reserved == ("admission" in after)
        self.workload["status"] = copy.deepcopy(after)
        self._touch_workload()

    # Actions of Kueue, and of people.

    def admit(
        self, *, workers: int | None = None, flavor: str = "", updates: list[dict[str, Any]] | None = None
    ) -> None:
        """Reserve quota and admit the Workload."""
        assert self.workload is not None
        assignments = []
        for pod_set in self.workload["spec"]["podSets"]:
            count = workers if workers is not None and pod_set["name"] == "worker" else pod_set["count"]
            assert pod_set.get("minCount", pod_set["count"]) <= count <= pod_set["count"]
            flavors = {"flavors": {"cpu": flavor, "memory": flavor}} if flavor else {}
            assignments.append({"name": pod_set["name"], "count": count, **flavors})
        status = self.workload.setdefault("status", {})
        status["admission"] = {"clusterQueue": "all", "podSetAssignments": assignments}
        if updates:
            status["admissionChecks"] = [{"name": "check", "state": "Ready", "podSetUpdates": updates}]
        self.set_workload_condition("QuotaReserved", True, "QuotaReserved", "Quota reserved")
        self.set_workload_condition("Admitted", True, "Admitted", "The workload is admitted")
        if self.get_workload_condition("Evicted"):
            self.set_workload_condition("Evicted", False, "QuotaReserved", "Previously evicted")

    def evict(self, reason: str = "Preempted", message: str = "Preempted to accommodate a workload") -> None:
        self.set_workload_condition("Evicted", True, reason, message)

    def set_workload_condition(self, kind: str, holds: bool, reason: str, message: str) -> None:
        assert self.workload is not None
        status = self.workload.setdefault("status", {})
        others = [item for item in status.get("conditions") or [] if item["type"] != kind]
        made = {"type": kind, "status": str(holds), "reason": reason, "message": message}
        status["conditions"] = [*others, {**made, "lastTransitionTime": format_time(self.now)}]
        self._touch_workload()

    def get_workload_condition(self, kind: str) -> dict[str, Any]:
        assert self.workload is not None
        conditions = (self.workload.get("status") or {}).get("conditions") or []
        found: dict[str, Any] = next((item for item in conditions if item["type"] == kind), {})
        return found

    def describe_workload(self) -> dict[str, str]:
        """Return each condition's status and reason."""
        assert self.workload is not None
        conditions = (self.workload.get("status") or {}).get("conditions") or []
        return {item["type"]: f"{item['status']} {item['reason']}" for item in conditions}

    def set_label(self, name: str, value: str | None) -> None:
        assert self.job is not None
        labels = self.job["metadata"].setdefault("labels", {})
        labels[name] = value
        if value is None:
            del labels[name]
        self._touch()

    def _touch_workload(self) -> None:
        assert self.workload is not None
        self.workload["metadata"]["resourceVersion"] = str(next(self._numbers))


def validate(spec: dict[str, Any]) -> None:
    """Refuse what Kueue's schema and webhook refuse."""
    sets = spec["podSets"]
    assert 1 <= len(sets) <= 8
    assert sum("minCount" in item for item in sets) <= 1
    assert ("priorityClassRef" in spec) <= ("priority" in spec)
    for item in sets:
        assert 1 <= item.get("minCount", 1) <= item["count"]
        assert set(item["template"]["metadata"]) <= {"labels", "annotations"}
        for container in item["template"]["spec"]["containers"]:
            assert "pods" not in (container.get("resources") or {}).get("requests", {})
