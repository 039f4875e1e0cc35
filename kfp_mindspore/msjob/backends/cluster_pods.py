"""Conversion from a cluster's pods and events to a backend's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_mindspore.msjob.backends.base import Event, Pod
from kfp_mindspore.msjob.names import (
    ATTEMPT_LABEL,
    CONTAINER_NAME,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    REPLICA_TYPES,
    resolve_replica_type,
)

Document = Mapping[str, Any]


def is_owned(document: Document, uid: str) -> bool:
    """Return whether an object is owned by the job with this uid, not by an earlier job with the same name."""
    owners = document["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid for owner in owners)


def has_started(document: Document) -> bool:
    """Return whether a pod's training container has started, so that it has a log."""
    state = _get_container(document).get("state") or {}
    return "running" in state or "terminated" in state


def read_pods(documents: Iterable[Document]) -> list[Pod]:
    """Return pods with a member's labels: scheduler, parameter servers, workers by rank."""
    pods = [read_pod(document) for document in documents if _get_replica_type(document) is not None]
    return sorted(pods, key=lambda pod: (REPLICA_TYPES.index(pod.replica_type), pod.index))


def read_pod(document: Document) -> Pod:
    """Return a pod, from its document."""
    metadata, status = document["metadata"], document.get("status") or {}
    labels = metadata.get("labels") or {}
    state = _get_container(document).get("state") or {}
    ended, running = state.get("terminated") or {}, state.get("running") or {}
    reason, message = ended.get("reason"), ended.get("message")
    if not ended:
        reason, message = _get_waiting_reason(document)
    return Pod(
        name=metadata["name"],
        namespace=metadata.get("namespace") or "default",
        replica_type=_get_replica_type(document) or "",
        index=_read_number(labels.get(REPLICA_INDEX_LABEL)),
        phase=str(status.get("phase") or "Pending"),
        labels=dict(labels),
        node=(document.get("spec") or {}).get("nodeName"),
        exit_code=ended.get("exitCode"),
        reason=reason,
        message=message,
        restarts=_read_number(labels.get(ATTEMPT_LABEL)),
        start_time=running.get("startedAt") or ended.get("startedAt") or status.get("startTime"),
        finish_time=ended.get("finishedAt"),
    )


def read_events(documents: Iterable[Document], job: str, uid: str) -> list[Event]:
    """Return the events on a job and its members, oldest first.

    Args:
        documents: Its namespace's events.
        job: Its name.
        uid: Its uid.
    """
    types = "|".join(name.lower() for name in REPLICA_TYPES)
    member = re.compile(rf"{re.escape(job)}-(?:(?:{types})|spare-\d+)-\d+")
    events = []
    for document in documents:
        about = document.get("involvedObject") or {}
        name = str(about.get("name") or "")
        if (name != job or about.get("uid") not in (None, uid)) and not member.fullmatch(name):
            continue
        time = next(
            (
                value
                for value in (
                    (document.get("series") or {}).get("lastObservedTime"),
                    document.get("lastTimestamp"),
                    document.get("eventTime"),
                    document["metadata"].get("creationTimestamp"),
                )
                if value
            ),
            "",
        )
        count = document.get("count") or 1
        message = str(document.get("message") or "").strip() + (f" ({count} times)" if count > 1 else "")
        events.append(Event(time, name, str(document.get("reason") or ""), message))
    return sorted(events, key=lambda event: event.time)


def _get_container(document: Document) -> Document:
    states = (document.get("status") or {}).get("containerStatuses") or []
    found: Document = next((item for item in states if item.get("name") == CONTAINER_NAME), {})
    return found


def _get_replica_type(document: Document) -> str | None:
    return resolve_replica_type((document["metadata"].get("labels") or {}).get(REPLICA_TYPE_LABEL) or "")


def _get_waiting_reason(document: Document) -> tuple[str | None, str | None]:
    """Return reason and message for a pod that does not run, or failed before its container started."""
    status = document.get("status") or {}
    for item in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = item.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return waiting["reason"], waiting.get("message")
        if ended.get("exitCode"):
            return f"Init:{ended.get('reason') or 'Error'}", f"init container {item.get('name')!r} failed"
    if status.get("reason"):
        return status["reason"], status.get("message")
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason"), condition.get("message")
    return None, None


def _read_number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
