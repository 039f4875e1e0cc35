"""Conversion from a cluster's pods and events to a backend's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_mindspore.kube.pods import PodState, read_pod
from kfp_mindspore.msjob.api.manifest import parse_time
from kfp_mindspore.msjob.api.names import (
    ATTEMPT_LABEL,
    CONTAINER_NAME,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    REPLICA_TYPES,
    resolve_replica_type,
)
from kfp_mindspore.msjob.backends.base import JobEvent, Pod

Document = Mapping[str, Any]


def is_owned(document: Document, uid: str) -> bool:
    """Return whether an object is owned by the job with this uid, not by an earlier job with the same name."""
    owners = document["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid for owner in owners)


def has_started(document: Document) -> bool:
    """Return whether a pod's training container has started, so that it has a log."""
    container = read_pod(document).get_container(CONTAINER_NAME)
    return container is not None and container.has_started


def read_pods(documents: Iterable[Document]) -> list[Pod]:
    """Return pods with a member's labels: scheduler, parameter servers, workers by rank."""
    pods = [_build_pod(document) for document in documents if _get_replica_type(document) is not None]
    return sorted(pods, key=lambda pod: (REPLICA_TYPES.index(pod.replica_type), pod.index))


def _build_pod(document: Document) -> Pod:
    """Return a pod, from its document."""
    state = read_pod(document)
    container = state.get_container(CONTAINER_NAME)
    ended = container.termination if container is not None else None
    started = ended.start_time if ended else container and container.start_time
    reason, message = (ended.reason, ended.message) if ended else _get_waiting_reason(state)
    return Pod(
        name=state.name,
        namespace=state.namespace or "default",
        replica_type=_get_replica_type(document) or "",
        index=_read_number(state.labels.get(REPLICA_INDEX_LABEL)),
        phase=state.phase,
        labels=dict(state.labels),
        node=state.node or None,
        exit_code=ended.exit_code if ended else None,
        reason=reason or None,
        message=message or None,
        restarts=_read_number(state.labels.get(ATTEMPT_LABEL)),
        start_time=parse_time(started or state.start_time),
        finish_time=parse_time(ended.finish_time) if ended else None,
    )


def read_events(documents: Iterable[Document], job: str, uid: str) -> list[JobEvent]:
    """Return the events on a job and its members, oldest first.

    Args:
        documents: The namespace's events.
        job: Job name.
        uid: Job uid.
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
        events.append(JobEvent(time, name, str(document.get("reason") or ""), message))
    return sorted(events, key=lambda event: event.time)


def _get_replica_type(document: Document) -> str | None:
    return resolve_replica_type((document["metadata"].get("labels") or {}).get(REPLICA_TYPE_LABEL) or "")


def _get_waiting_reason(state: PodState) -> tuple[str, str]:
    """Return reason and message for a pod that does not run, or failed before its container started."""
    for item in state.all_containers:
        if item.waiting_reason not in ("", "ContainerCreating", "PodInitializing"):
            return item.waiting_reason, item.waiting_message
        if item.termination is not None and item.termination.exit_code:
            return f"Init:{item.termination.reason or 'Error'}", f"init container {item.name!r} failed"
    if state.reason:
        return state.reason, state.message
    return (state.unscheduled.reason, state.unscheduled.message) if state.unscheduled else ("", "")


def _read_number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
