"""A pod's view for the operator's decisions, from pod state and labels."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp_mindspore.kube.pods import KILLED, ContainerTermination, PodState, read_pod
from kfp_mindspore.msjob.api.manifest import parse_time
from kfp_mindspore.msjob.api.names import (
    ATTEMPT_LABEL,
    CONTAINER_NAME,
    JOB_LABEL,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    SCHEDULER,
)
from kfp_mindspore.msjob.api.waiting import (
    CONTAINER,
    CONTAINER_CONFIG,
    IMAGE_PULL,
    NO_NODE_FITS,
    UNBOUND_VOLUME,
    UNSCHEDULABLE,
    Waiting,
)
from kfp_mindspore.msjob.decisions.restart import START_ERROR
from kfp_mindspore.operator.decisions.observed import (
    HOST_ANNOTATION,
    PROBE,
    RESTARTS_ANNOTATION,
    SPARE,
    WORKERS_ANNOTATION,
    PodView,
    read_identity,
)
from kfp_mindspore.settings import PROGRESS_PREFIX

NODE_LOST = "NodeLost"
_ADDRESSED = (SCHEDULER.lower(), SPARE)
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
_PERMANENT_WAITS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_RETRIED_WAITS = {
    "ErrImagePull": IMAGE_PULL,
    "ImagePullBackOff": IMAGE_PULL,
    "CreateContainerConfigError": CONTAINER_CONFIG,
    "CreateContainerError": CONTAINER,
}
# Kubernetes 1.34's scheduler has no field for it: a claim without a volume, such as one with a missing storage class.
_NO_VOLUME = "unbound immediate PersistentVolumeClaims"
_DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
    "DeletionByTaintManager": NODE_LOST,
    "DeletionByPodGC": NODE_LOST,
}
_KUBELET_REASONS = {"Evicted": "Evicted", "Preempting": "Preempted", "Terminated": "Evicted", "NodeLost": NODE_LOST}


class _End(NamedTuple):
    exit_code: int
    reason: str
    message: str
    time: datetime.datetime | None = None
    log: tuple[str, ...] = ()


def view_pod(pod: Mapping[str, Any]) -> PodView:
    """Return a pod's view."""
    state = read_pod(pod)
    annotations, labels = state.annotations, state.labels
    replica_type = labels.get(REPLICA_TYPE_LABEL)
    end = _get_end(state)
    exit_code, reason, message, finish_time, log = end or (None, "", "", None, ())
    if exit_code != 0 and reason not in (START_ERROR, "OOMKilled") and (disruption := state.disruption):
        reason, message = _DISRUPTIONS.get(disruption.reason, "Evicted"), ""
        finish_time = parse_time(disruption.time) or finish_time
    elif exit_code not in (None, 0) and reason == "Error" and state.is_deleting:
        reason = "Deleted"
    return PodView(
        **read_identity(pod["metadata"]),
        member=_read_member(state.name, labels),
        phase=state.phase,
        attempt=_read_number(labels.get(ATTEMPT_LABEL)) or 0,
        restarts=_read_number(annotations.get(RESTARTS_ANNOTATION)) or 0,
        workers=_read_number(annotations.get(WORKERS_ANNOTATION)),
        host=annotations.get(HOST_ANNOTATION, ""),
        exit_code=exit_code,
        reason=reason,
        message=message,
        finish_time=finish_time,
        log=log,
        waiting=None if end else _get_waiting(state),
        lost=end is None and state.is_node_lost,
        stopped=state.is_stopped,
        addresses=state.addresses if replica_type in _ADDRESSED else (),
        created=parse_time(state.created),
        scheduled_at=parse_time(state.scheduled_at) if replica_type == PROBE else None,
    )


def _get_end(state: PodState) -> _End | None:
    """Return a terminated pod's end, or None before."""
    main = state.get_container(CONTAINER_NAME)
    if main is not None and main.termination is not None:
        return _read_termination(main.termination)
    if main is not None and main.waiting_reason in _PERMANENT_WAITS:
        return _End(128, START_ERROR, f"{main.waiting_reason}: {main.image}")
    if state.phase == "Succeeded":
        return _End(0, "Completed", "")
    if state.phase != "Failed":
        return None
    for item in state.init_containers:
        if item.termination is not None and item.termination.exit_code != 0:
            return _read_termination(item.termination, f"in its init container '{item.name}'")
    # No container status: the pod never ran, or its node is lost.
    reason = state.reason or "Error"
    return _End(KILLED, _KUBELET_REASONS.get(reason, reason), state.message)


def _read_termination(ended: ContainerTermination, where: str = "") -> _End:
    reason = ended.reason or ("Completed" if ended.exit_code == 0 else "Error")
    text, time = ended.message.strip(), parse_time(ended.finish_time)
    if reason in _CANNOT_START:
        return _End(ended.exit_code, START_ERROR, text, time)
    log = tuple(line for line in text.splitlines() if not line.startswith(PROGRESS_PREFIX))
    return _End(ended.exit_code, "InitFailed" if where and reason == "Error" else reason, where, time, log)


def _get_waiting(state: PodState) -> Waiting | None:
    for item in state.all_containers:
        if reason := _RETRIED_WAITS.get(item.waiting_reason):
            # A configuration's message is constant and names the missing Secret or key; those of pulls and of the
            # runtime change with every retry.
            details = item.waiting_message if reason == CONTAINER_CONFIG else ""
            return Waiting(reason, f"{reason}: {details or item.image}")
    return None if state.unschedulable is None else _read_unschedulable(state.unschedulable)


def _read_unschedulable(message: str) -> Waiting:
    """Return the scheduler's reasons without node counts, which change with each attempt."""
    reasons, _, preemption = message.partition(" preemption: ")
    text = re.sub(r"^\d+/\d+ nodes are available: ", "", reasons).partition(". ")[0].rstrip(".")
    # Kubernetes 1.34's message: removing all other pods would not help on any node.
    is_permanent = "not helpful" in preemption and "No preemption victims" not in preemption
    reason = UNBOUND_VOLUME if _NO_VOLUME in text else NO_NODE_FITS if is_permanent else UNSCHEDULABLE
    head = "Unschedulable: no node fits" if is_permanent else "Unschedulable"
    return Waiting(reason, f"{head}: " + re.sub(r"(^|, )\d+ ", r"\1", text))


def _read_member(name: str, labels: Mapping[str, str]) -> str:
    job = labels.get(JOB_LABEL) or ""
    if not name.startswith(f"{job}-{SPARE}-"):
        return name
    return f"{job}-{labels.get(REPLICA_TYPE_LABEL)}-{labels.get(REPLICA_INDEX_LABEL)}"


def _read_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
