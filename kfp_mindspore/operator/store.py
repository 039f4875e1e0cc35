"""What the API server was last seen to hold, a few kilobytes a job: jobs packed, pods and Services cut down."""

from __future__ import annotations

import dataclasses
import sys
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from kfp_mindspore.msjob.names import JOB_LABEL
from kfp_mindspore.operator.encoding import decode, encode
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
        job: Its packed document; empty when there is none.
        uid: Its uid.
        version: Its resourceVersion.
        state: Its state, for counting.
        children: Its pods, Service, EndpointSlice and PodGroup, by kind and name.
        foreign: Objects of others that have a name which the job needs, by kind and name.
        refusal: Why the API server last refused to make one of its objects; empty when it did not.
        making: What objects will look like whose creation is under way, by kind and name.
        writing: The generation whose status is being written; None when none is.
    """

    __slots__ = ("children", "foreign", "job", "making", "refusal", "state", "uid", "version", "writing")

    def __init__(self) -> None:
        self.job = b""
        self.uid = ""
        self.version = 0
        self.state = ""
        self.children: dict[tuple[Kind, str], Seen] = {}
        self.foreign: dict[tuple[Kind, str], View] = {}
        self.refusal = ""
        self.making: dict[tuple[Kind, str], View] = {}
        self.writing: int | None = None


@dataclass
class Store:
    """Jobs by key; nothing in it ever gets older.

    A write's answer goes in at once, so that what the operator has done itself is known before a watch says so; what a
    watch then says of the same resourceVersion is no news. Nor is what it says of a write whose answer is still to come
    (`making`, `writing`): who waits for that answer looks again by himself.
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
        expected = entry.uid == uid and entry.writing is not None and entry.writing == metadata.get("generation")
        entry.job, entry.uid, entry.version = _pack(document), uid, version
        self._count(entry, str((document.get("status") or {}).get("state") or "Pending"))
        return None if expected and not metadata.get("deletionTimestamp") else key

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

    @contextmanager
    def writing(self, key: Key, generation: int | None) -> Iterator[None]:
        """Expect news of a job's status, and of nothing else of this generation, for the length of a block."""
        entry = self.entries.get(key, Entry())
        entry.writing = generation
        try:
            yield
        finally:
            entry.writing = None

    def put_status(self, key: Key, uid: str, version: int, job: Mapping[str, Any]) -> None:
        """Take in a job whose status was just written, with the resourceVersion of the answer."""
        entry = self.entries.get(key)
        if entry is not None and entry.uid == uid and version > entry.version:
            entry.job, entry.version = _pack(job), version
            self._count(entry, str((job.get("status") or {}).get("state") or "Pending"))

    def put(self, kind: Kind, document: Mapping[str, Any]) -> Key | None:
        """Take in a pod, Service, EndpointSlice or PodGroup; return its job's key when its view has changed."""
        metadata = document["metadata"]
        key = self.find_job(kind, document)
        if key is None or metadata.get("uid", "") in self._gone:
            return None
        entry = self.entries.get(key) or self.entries.setdefault(key, Entry())
        name, version = metadata["name"], int(metadata.get("resourceVersion") or 0)
        before = entry.children.get((kind, name))
        if before is not None and version <= before.version:
            return None
        view = VIEWS[kind](document)
        expected = entry.making.get((kind, name))
        entry.foreign.pop((kind, name), None)
        if before is not None and before.view == view:
            entry.children[(kind, name)] = Seen(before.view, version)
            return None
        entry.children[(kind, name)] = Seen(view, version)
        return None if expected is not None and _strip(view) == _strip(expected) else key

    @contextmanager
    def making(self, key: Key, kind: Kind, document: Mapping[str, Any]) -> Iterator[None]:
        """Expect news of an object that is being made for a job, as it is asked for, for the length of a block."""
        entry, name = self.entries.get(key, Entry()), document["metadata"]["name"]
        entry.making[(kind, name)] = VIEWS[kind](document)
        try:
            yield
        finally:
            del entry.making[(kind, name)]

    @staticmethod
    def find_job(kind: Kind, document: Mapping[str, Any]) -> Key | None:
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
                unpack(entry.job),
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


def _strip(view: View) -> View:
    """Return a view without what only the API server knows."""
    if isinstance(view, ServiceView):
        return dataclasses.replace(view, uid="", cluster_ip="")
    return dataclasses.replace(view, uid="")


def unpack(job: bytes) -> dict[str, Any]:
    """Return a packed document."""
    document: dict[str, Any] = decode(zlib.decompress(job))
    return document


def _pack(document: Mapping[str, Any]) -> bytes:
    """Return a document small: without what kubectl and the API server note down for themselves, compressed."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    if _APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {name: value for name, value in metadata["annotations"].items() if name != _APPLIED}
    return zlib.compress(encode({**document, "metadata": metadata}), 1)
