"""The API server's last observed state, a few kilobytes per job: jobs as JSON, other objects as views."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES, Resource
from kfp_mindspore.msjob.api.kueue import WORKLOADS, name_workload
from kfp_mindspore.msjob.api.manifest import parse_lease
from kfp_mindspore.msjob.api.names import JOB_LABEL, LEASE_ANNOTATION
from kfp_mindspore.msjob.api.status import TrainingProgress
from kfp_mindspore.operator.decisions.observed import (
    LONG_AGO,
    EndpointSliceView,
    Observed,
    PodGroupView,
    PodView,
    Refusal,
    ServiceView,
    WorkloadView,
    view_endpoint_slice,
    view_pod_group,
    view_service,
    view_workload,
)
from kfp_mindspore.operator.decisions.pod_view import view_pod

View = PodView | ServiceView | EndpointSliceView | PodGroupView | WorkloadView
_VIEWS: dict[Resource, Callable[[Mapping[str, Any]], View]] = {
    PODS: view_pod,
    SERVICES: view_service,
    ENDPOINT_SLICES: view_endpoint_slice,
    WORKLOADS: view_workload,
}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Deleted objects' UIDs, to ignore a create response that arrives after the DELETED event.
_KEPT_UIDS = 20_000


class JobKey(NamedTuple):
    """A job's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Child(NamedTuple):
    """An object's view and resourceVersion."""

    view: View
    version: int


class JobEntry:
    """One job's observed state.

    Attributes:
        job: Job document as JSON, a tenth of the memory that Python objects take, without resourceVersion and lease;
            empty without a job.
        lease: Lease annotation's value; None without.
        uid: Job uid.
        generation: Job generation.
        version: Job resourceVersion.
        state: Job state, for metrics.
        children: The job's pods, Service, EndpointSlice, PodGroup and Workload, by resource and name.
        foreign: Objects without the job's label that have a name which the job needs, by resource and name.
        references: Cluster-wide objects that a decision has asked for, or why one cannot be read.
        refusal: The last refusal to create one of the objects in this generation; None without one.
        progress: The last progress read from the log; None before.
    """

    __slots__ = (
        "children",
        "foreign",
        "generation",
        "job",
        "lease",
        "progress",
        "references",
        "refusal",
        "state",
        "uid",
        "version",
    )

    def __init__(self) -> None:
        self.job = b""
        self.lease: str | None = None
        self.uid = ""
        self.generation: int | None = None
        self.version = 0
        self.state = ""
        self.children: dict[tuple[Resource, str], Child] = {}
        self.foreign: dict[tuple[Resource, str], View] = {}
        self.references: dict[tuple[Resource, str], Mapping[str, Any] | str] = {}
        self.refusal: Refusal | None = None
        self.progress: TrainingProgress | None = None


@dataclass
class JobCache:
    """Jobs by key; no object is ever replaced by an older version.

    The response to a write is stored at once, so that the operator's own writes are known before the watch reports
    them; an event with the same resourceVersion then changes nothing.
    """

    entries: dict[JobKey, JobEntry] = field(default_factory=dict)
    connected_at: datetime.datetime | None = LONG_AGO
    states: Counter[str] = field(default_factory=Counter)
    _deleted_uids: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def put_job(self, document: Mapping[str, Any]) -> JobKey | None:
        """Store a job; return the key, or None when nothing that a decision needs now has changed.

        A renewed lease is such a change only at the time at which the one before would have expired.
        """
        metadata = document["metadata"]
        key = JobKey(metadata["namespace"], metadata["name"])
        uid, version = str(metadata.get("uid", "")), int(metadata.get("resourceVersion") or 0)
        entry = self.entries.get(key)
        if uid in self._deleted_uids or (entry is not None and entry.job and version <= entry.version):
            return None
        entry = entry or self.entries.setdefault(key, JobEntry())
        generation = metadata.get("generation")
        if (uid, generation) != (entry.uid, entry.generation):
            entry.refusal = None
        if uid != entry.uid:
            entry.progress = None
        packed, lease = _pack(document)
        is_known = packed == entry.job and _is_renewal(entry.lease, lease)
        entry.job, entry.lease, entry.uid, entry.generation, entry.version = packed, lease, uid, generation, version
        self._count(entry, str((document.get("status") or {}).get("state") or "Pending"))
        return None if is_known else key

    def drop_job(self, key: JobKey, uid: str) -> JobKey | None:
        """Drop a deleted job, if it still has this uid; return the key."""
        self._mark_deleted(uid)
        entry = self.entries.get(key)
        if entry is None or not entry.job or entry.uid != uid:
            return None
        self._count(entry, "")
        entry.job, entry.uid, entry.version, entry.refusal = b"", "", 0, None
        entry.foreign.clear()
        self._remove_if_empty(key, entry)
        return key

    def put(self, resource: Resource, document: Mapping[str, Any]) -> JobKey | None:
        """Store a pod, Service, EndpointSlice, PodGroup or Workload; return the job's key when the view has changed."""
        metadata = document["metadata"]
        key = self.resolve_job(resource, document)
        if key is None or metadata.get("uid", "") in self._deleted_uids:
            return None
        entry = self.entries.get(key) or self.entries.setdefault(key, JobEntry())
        name, version = metadata["name"], int(metadata.get("resourceVersion") or 0)
        before = entry.children.get((resource, name))
        if before is not None and version <= before.version:
            return None
        view = _view(resource, document)
        entry.foreign.pop((resource, name), None)
        if before is not None and before.view == view:
            entry.children[(resource, name)] = Child(before.view, version)
            return None
        entry.children[(resource, name)] = Child(view, version)
        return key

    @staticmethod
    def resolve_job(resource: Resource, document: Mapping[str, Any]) -> JobKey | None:
        """Return the job key that an object's labels name, or None."""
        metadata = document["metadata"]
        job = (metadata.get("labels") or {}).get(JOB_LABEL)
        if not job and resource not in _VIEWS:
            # A PodGroup has its job's name.
            job = metadata["name"]
        return JobKey(metadata["namespace"], job) if job else None

    def mark_deleting(self, resource: Resource, key: JobKey, name: str, uid: str, version: int) -> None:
        """Record an object's deletionTimestamp, from the response to the deletion."""
        entry = self.entries.get(key)
        child = entry.children.get((resource, name)) if entry else None
        if entry is not None and child is not None and child.view.uid == uid and child.version < version:
            entry.children[(resource, name)] = Child(dataclasses.replace(child.view, deleting=True), version)

    def put_foreign(self, key: JobKey, resource: Resource, document: Mapping[str, Any]) -> None:
        """Store an object without the job's label that has a name which the job needs."""
        name = document["metadata"]["name"]
        if (entry := self.entries.get(key)) is not None and (resource, name) not in entry.children:
            entry.foreign[(resource, name)] = _view(resource, document)

    def list_foreign(self, key: JobKey) -> list[tuple[Resource, str]]:
        """Return resource and name for a job's foreign objects, whose deletion no watch reports."""
        entry = self.entries.get(key)
        return list(entry.foreign) if entry else []

    def drop_foreign(self, key: JobKey, resource: Resource, name: str) -> None:
        """Drop a foreign object."""
        if (entry := self.entries.get(key)) is not None:
            entry.foreign.pop((resource, name), None)

    def put_reference(self, key: JobKey, resource: Resource, name: str, found: Mapping[str, Any] | str) -> None:
        """Store a cluster-wide object that a decision has asked for, or why it cannot be read."""
        if (entry := self.entries.get(key)) is not None:
            entry.references[(resource, name)] = found

    def clear_references(self, key: JobKey) -> None:
        """Drop the cluster-wide objects, whose changes no watch reports."""
        if (entry := self.entries.get(key)) is not None:
            entry.references.clear()

    def drop(self, resource: Resource, key: JobKey, name: str, uid: str) -> JobKey | None:
        """Drop a deleted object, if it still has this uid; return the job's key."""
        self._mark_deleted(uid)
        entry = self.entries.get(key)
        child = entry.children.get((resource, name)) if entry else None
        if entry is None or child is None or child.view.uid != uid:
            return None
        del entry.children[(resource, name)]
        self._remove_if_empty(key, entry)
        return key

    def set_refusal(self, key: JobKey, refusal: Refusal | None) -> bool:
        """Store why one of a job's objects could not be created; return whether the status must show it at once."""
        entry = self.entries.get(key)
        if entry is None:
            return False
        is_news = refusal is not None and (entry.refusal is None or refusal.is_permanent)
        entry.refusal = refusal
        return is_news

    def set_progress(self, key: JobKey, progress: TrainingProgress) -> bool:
        """Store the progress read from a job's log; return whether it has changed."""
        entry = self.entries.get(key)
        if entry is None or entry.progress == progress:
            return False
        entry.progress = progress
        return True

    def get_pod_name(self, key: JobKey, member: str) -> str:
        """Return a member's newest pod name, which may have been a warm spare."""
        entry = self.entries.get(key)
        views = [child.view for child in entry.children.values()] if entry else []
        pods = [view for view in views if isinstance(view, PodView) and view.member == member]
        return max(pods, key=lambda pod: pod.attempt).name if pods else member

    def list_in_state(self, state: str) -> list[JobKey]:
        """Return the keys of the jobs in a state."""
        return [key for key, entry in self.entries.items() if entry.state == state]

    def observe(self, key: JobKey) -> tuple[Observed, int]:
        """Return a job's observed state and resourceVersion."""
        entry = self.entries.get(key)
        if entry is None or not entry.job:
            return Observed(None), 0
        views = [*(child.view for child in entry.children.values()), *entry.foreign.values()]
        workload = name_workload(key.name)
        return (
            Observed(
                _unpack(entry.job, entry.lease),
                tuple(view for view in views if isinstance(view, PodView)),
                tuple(view for view in views if isinstance(view, ServiceView)),
                tuple(view for view in views if isinstance(view, EndpointSliceView)),
                next((view for view in views if isinstance(view, PodGroupView) and view.name == key.name), None),
                entry.refusal,
                self.connected_at,
                entry.progress,
                next((view for view in views if isinstance(view, WorkloadView) and view.name == workload), None),
                dict(entry.references),
            ),
            entry.version,
        )

    def list_jobs(self, namespace: str = "") -> Iterator[tuple[JobKey, str, int]]:
        """Yield key, uid and resourceVersion for each job in a namespace, or in all."""
        for key, entry in list(self.entries.items()):
            if entry.job and namespace in ("", key.namespace):
                yield key, entry.uid, entry.version

    def list_children(self, resource: Resource, namespace: str = "") -> Iterator[tuple[JobKey, str, str, int]]:
        """Yield job, name, uid and resourceVersion for each object of a resource in a namespace, or in all."""
        for key, entry in list(self.entries.items()):
            if namespace in ("", key.namespace):
                for (found, name), child in list(entry.children.items()):
                    if found == resource:
                        yield key, name, child.view.uid, child.version

    def _count(self, entry: JobEntry, state: str) -> None:
        if entry.state:
            self.states[entry.state] -= 1
        if state:
            self.states[state] += 1
        entry.state = sys.intern(state)

    def _remove_if_empty(self, key: JobKey, entry: JobEntry) -> None:
        if not entry.job and not entry.children:
            del self.entries[key]

    def _mark_deleted(self, uid: str) -> None:
        self._deleted_uids[uid] = None
        if len(self._deleted_uids) > _KEPT_UIDS:
            self._deleted_uids.popitem(last=False)


def _view(resource: Resource, document: Mapping[str, Any]) -> View:
    return _VIEWS.get(resource, view_pod_group)(document)


def _pack(document: Mapping[str, Any]) -> tuple[bytes, str | None]:
    """Return a job as JSON without lease, resourceVersion, managedFields and kubectl's copy; and the lease."""
    metadata = {
        name: value for name, value in document["metadata"].items() if name not in ("managedFields", "resourceVersion")
    }
    annotations: Mapping[str, str] = metadata.pop("annotations", None) or {}
    kept = {name: value for name, value in annotations.items() if name not in (_LAST_APPLIED, LEASE_ANNOTATION)}
    if kept:
        metadata["annotations"] = kept
    return json.dumps({**document, "metadata": metadata}).encode(), annotations.get(LEASE_ANNOTATION)


def _unpack(packed: bytes, lease: str | None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(packed)
    if lease is not None:
        document["metadata"].setdefault("annotations", {})[LEASE_ANNOTATION] = lease
    return document


def _is_renewal(before: str | None, after: str | None) -> bool:
    """Return whether a lease holds for longer than before, or as long."""
    if before == after:
        return True
    old, new = parse_lease(before), parse_lease(after)
    return old is not None and new is not None and new >= old
