"""What the API server was last seen to hold, a few kilobytes a job: jobs as JSON, pods and Services cut down."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from kfp_mindspore.msjob.names import JOB_LABEL
from kfp_mindspore.operator.observed import (
    EndpointSliceView,
    Observed,
    PodGroupView,
    PodView,
    ServiceView,
    view_endpoint_slice,
    view_pod,
    view_pod_group,
    view_service,
)

Kind = Literal["pods", "services", "endpointslices", "podgroups"]
View = PodView | ServiceView | EndpointSliceView | PodGroupView
VIEWS: dict[Kind, Callable[[Mapping[str, Any]], View]] = {
    "pods": view_pod,
    "services": view_service,
    "endpointslices": view_endpoint_slice,
    "podgroups": view_pod_group,
}
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# How many deleted objects are remembered, against an answer to their creation that comes after the news of their end.
_REMEMBERED = 20_000


class Key(NamedTuple):
    """Which job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Seen(NamedTuple):
    """A cut-down object and the resourceVersion it was seen at."""

    view: View
    version: int


class Entry:
    """All that is known of one job.

    Attributes:
        job: Its document as JSON, a tenth of the memory of Python's objects; empty when there is none.
        uid: Its uid.
        version: Its resourceVersion.
        state: Its state, for counting.
        children: Its pods, Service, EndpointSlice and PodGroup, by kind and name.
        foreign: Objects of others that have a name which the job needs, by kind and name.
        refusal: Why the API server last refused to make one of its objects; empty when it did not.
    """

    __slots__ = ("children", "foreign", "job", "refusal", "state", "uid", "version")

    def __init__(self) -> None:
        self.job = b""
        self.uid = ""
        self.version = 0
        self.state = ""
        self.children: dict[tuple[Kind, str], Seen] = {}
        self.foreign: dict[tuple[Kind, str], View] = {}
        self.refusal = ""


@dataclass
class Store:
    """Jobs by key; nothing in it ever gets older.

    The response to a write is stored at once, so that the operator's own writes are known before the watch reports
    them; an event of the same resourceVersion then changes nothing.
    """

    entries: dict[Key, Entry] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    _gone: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def put_job(self, document: Mapping[str, Any]) -> Key | None:
        """Take a job in; return its key, or None when that is no news."""
        metadata = document["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        uid, version = str(metadata.get("uid", "")), int(metadata.get("resourceVersion") or 0)
        entry = self.entries.get(key)
        if uid in self._gone or (entry is not None and entry.job and version <= entry.version):
            return None
        entry = entry or self.entries.setdefault(key, Entry())
        entry.job, entry.uid, entry.version = _pack(document), uid, version
        self._count(entry, str((document.get("status") or {}).get("state") or "Pending"))
        return key

    def drop_job(self, key: Key, uid: str) -> Key | None:
        """Forget a job that is gone, if it is still the one of this uid; return its key."""
        self._bury(uid)
        entry = self.entries.get(key)
        if entry is None or not entry.job or entry.uid != uid:
            return None
        self._count(entry, "")
        entry.job, entry.uid, entry.version, entry.refusal = b"", "", 0, ""
        entry.foreign.clear()
        self._tidy(key, entry)
        return key

    def put(self, kind: Kind, document: Mapping[str, Any]) -> Key | None:
        """Take in a pod, Service, EndpointSlice or PodGroup; return its job's key when its view has changed."""
        metadata = document["metadata"]
        key = self.resolve_job(kind, document)
        if key is None or metadata.get("uid", "") in self._gone:
            return None
        entry = self.entries.get(key) or self.entries.setdefault(key, Entry())
        name, version = metadata["name"], int(metadata.get("resourceVersion") or 0)
        before = entry.children.get((kind, name))
        if before is not None and version <= before.version:
            return None
        view = VIEWS[kind](document)
        entry.foreign.pop((kind, name), None)
        if before is not None and before.view == view:
            entry.children[(kind, name)] = Seen(before.view, version)
            return None
        entry.children[(kind, name)] = Seen(view, version)
        return key

    @staticmethod
    def resolve_job(kind: Kind, document: Mapping[str, Any]) -> Key | None:
        """Return the key of the job that an object's labels name, or None."""
        metadata = document["metadata"]
        job = (metadata.get("labels") or {}).get(JOB_LABEL) or (metadata["name"] if kind == "podgroups" else "")
        return Key(metadata["namespace"], job) if job else None

    def mark_deleting(self, kind: Kind, key: Key, name: str, uid: str, version: int) -> None:
        """Take in that an object was told to go, from the answer to that."""
        entry = self.entries.get(key)
        seen = entry.children.get((kind, name)) if entry else None
        if entry is not None and seen is not None and seen.view.uid == uid and seen.version < version:
            entry.children[(kind, name)] = Seen(dataclasses.replace(seen.view, deleting=True), version)

    def put_foreign(self, key: Key, kind: Kind, view: View) -> None:
        """Take in an object that has a name which a job needs, and does not carry the job's label."""
        if (entry := self.entries.get(key)) is not None and (kind, view.name) not in entry.children:
            entry.foreign[(kind, view.name)] = view

    def list_foreign(self, key: Key) -> list[tuple[Kind, str]]:
        """Return kind and name of a job's foreign objects: nobody tells when they go."""
        entry = self.entries.get(key)
        return list(entry.foreign) if entry else []

    def drop_foreign(self, key: Key, kind: Kind, name: str) -> None:
        """Forget a foreign object."""
        if (entry := self.entries.get(key)) is not None:
            entry.foreign.pop((kind, name), None)

    def drop(self, kind: Kind, key: Key, name: str, uid: str) -> Key | None:
        """Forget an object that is gone, if it is still the one of this uid; return its job's key."""
        self._bury(uid)
        entry = self.entries.get(key)
        seen = entry.children.get((kind, name)) if entry else None
        if entry is None or seen is None or seen.view.uid != uid:
            return None
        del entry.children[(kind, name)]
        self._tidy(key, entry)
        return key

    def set_refusal(self, key: Key, refusal: str) -> bool:
        """Remember why a job's object could not be made; return whether it is the first time."""
        entry = self.entries.get(key)
        if entry is None:
            return False
        first = bool(refusal) and not entry.refusal
        entry.refusal = refusal
        return first

    def observe(self, key: Key) -> tuple[Observed, int]:
        """Return what is known of a job, and its resourceVersion."""
        entry = self.entries.get(key)
        if entry is None or not entry.job:
            return Observed(None), 0
        views = [*(seen.view for seen in entry.children.values()), *entry.foreign.values()]
        return (
            Observed(
                json.loads(entry.job),
                tuple(view for view in views if isinstance(view, PodView)),
                tuple(view for view in views if isinstance(view, ServiceView)),
                tuple(view for view in views if isinstance(view, EndpointSliceView)),
                next((view for view in views if isinstance(view, PodGroupView) and view.name == key.name), None),
                entry.refusal,
            ),
            entry.version,
        )

    def list_jobs(self, namespace: str = "") -> Iterator[tuple[Key, str, int]]:
        """Yield key, uid and resourceVersion of each job in a namespace, or in all."""
        for key, entry in list(self.entries.items()):
            if entry.job and namespace in ("", key.namespace):
                yield key, entry.uid, entry.version

    def list_children(self, kind: Kind, namespace: str = "") -> Iterator[tuple[Key, str, str, int]]:
        """Yield job, name, uid and resourceVersion of each object of a kind in a namespace, or in all."""
        for key, entry in list(self.entries.items()):
            if namespace in ("", key.namespace):
                for (found, name), seen in list(entry.children.items()):
                    if found == kind:
                        yield key, name, seen.view.uid, seen.version

    def _count(self, entry: Entry, state: str) -> None:
        if entry.state:
            self.states[entry.state] -= 1
        if state:
            self.states[state] += 1
        entry.state = sys.intern(state)

    def _tidy(self, key: Key, entry: Entry) -> None:
        if not entry.job and not entry.children:
            del self.entries[key]

    def _bury(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)


def _pack(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON, without managedFields and kubectl's copy of it."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    if _APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {name: value for name, value in metadata["annotations"].items() if name != _APPLIED}
    return json.dumps({**document, "metadata": metadata}).encode()
