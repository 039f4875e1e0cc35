"""Views of observed objects, with the fields that decisions need: small, frozen, comparable."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.msjob.manifest import parse_time
from kfp_mindspore.msjob.names import (
    ATTEMPT_LABEL,
    CONTAINER_NAME,
    JOB_LABEL,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    SCHEDULER,
)
from kfp_mindspore.msjob.restart import START_ERROR
from kfp_mindspore.msjob.status import Progress
from kfp_mindspore.msjob.waiting import (
    CONTAINER,
    CONTAINER_CONFIG,
    IMAGE_PULL,
    NO_NODE_FITS,
    REJECTED,
    UNBOUND_VOLUME,
    UNSCHEDULABLE,
    Waiting,
)
from kfp_mindspore.settings import PROGRESS_PREFIX

LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)

RESTARTS_ANNOTATION = "mindspore.gitee.com/restarts"
WORKERS_ANNOTATION = "mindspore.gitee.com/workers"
HOST_ANNOTATION = "mindspore.gitee.com/scheduler-host"

# The replica type for pods that probe for capacity.
PROBE = "probe"
# The replica type for warm spares before they become members.
SPARE = "spare"
KILLED = 137
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
_UNSCHEDULABLE = frozenset({UNSCHEDULABLE, NO_NODE_FITS, UNBOUND_VOLUME})
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


@dataclass(frozen=True, slots=True)
class ObjectView:
    """An object's identity.

    Attributes:
        name: Its name.
        uid: Its uid.
        owner: Its controller's uid; empty without one.
        deleting: Whether it has a deletionTimestamp.
    """

    name: str
    uid: str
    owner: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class PodView(ObjectView):
    """A pod.

    Attributes:
        member: Member name by its labels: its own, except for a warm spare that became a member.
        phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        attempt: Its job's attempt, from 0.
        restarts: Its job's counted restarts when it was created.
        workers: Its job's worker count when it was created; None without the annotation.
        host: The scheduler's address that it was created with; empty for none.
        exit_code: Its training container's exit code; None before it has terminated.
        reason: As in `kfp_mindspore.msjob.restart.ContainerTermination`; set before its end when the pod is
            being disrupted.
        message: The reason's details.
        finish_time: When it was terminated or disrupted.
        log: Its last lines, oldest first, from the termination message.
        waiting: Why it does not start, such as `ImagePullBackOff: no/such:image`; None otherwise.
        lost: Whether its node no longer reports.
        stopped: Whether all its containers have terminated; the kubelet reports it before the phase.
        addresses: Its IP addresses, for a scheduler or spare only.
        created: Creation time.
        scheduled_at: Since when it has a node; for a probe only, None before.
    """

    member: str = ""
    phase: str = "Pending"
    attempt: int = 0
    restarts: int = 0
    workers: int | None = None
    host: str = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    finish_time: datetime.datetime | None = None
    log: tuple[str, ...] = ()
    waiting: Waiting | None = None
    lost: bool = False
    stopped: bool = False
    addresses: tuple[str, ...] = ()
    created: datetime.datetime | None = None
    scheduled_at: datetime.datetime | None = None

    @property
    def is_unschedulable(self) -> bool:
        """Whether the scheduler found no node for it."""
        return self.waiting is not None and self.waiting.reason in _UNSCHEDULABLE

    @property
    def is_finished(self) -> bool:
        """Whether all its processes have ended."""
        return self.stopped or self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ServiceView(ObjectView):
    """A Service: its identity, cluster IP (empty until it is known) and port."""

    cluster_ip: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointSliceView(ObjectView):
    """An EndpointSlice: its identity, and its endpoint's pod uid, address and port (empty and None without one)."""

    pod: str = ""
    address: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True)
class PodGroupView(ObjectView):
    """A gang scheduler's PodGroup: its identity, minimum member count and phase."""

    minimum: int | None = None
    phase: str = ""


@dataclass(frozen=True)
class Refusal:
    """The API server's refusal to create a job's object.

    Attributes:
        message: Its message.
        reason: As in `kfp_mindspore.msjob.waiting.Waiting`.
        is_permanent: Whether retries are refused too: the pod is invalid, or violates its namespace's Pod Security.
    """

    message: str
    reason: str = REJECTED
    is_permanent: bool = False


@dataclass(frozen=True)
class Observed:
    """Input to one decision.

    Attributes:
        job: The MSJob's document; None when there is none.
        pods: The pods with the job's label, or with a name that the job needs.
        services: The Services, likewise.
        endpoint_slices: The EndpointSlices, likewise.
        pod_group: The PodGroup with the job's name, if there is one.
        refusal: The last refusal to create one of the job's objects; None when there was none.
        connected_at: Since when the API server reports job changes; None while it does not.
        progress: The last progress read from worker 0's log; None before.
    """

    job: Mapping[str, Any] | None
    pods: tuple[PodView, ...] = ()
    services: tuple[ServiceView, ...] = ()
    endpoint_slices: tuple[EndpointSliceView, ...] = ()
    pod_group: PodGroupView | None = None
    refusal: Refusal | None = None
    connected_at: datetime.datetime | None = LONG_AGO
    progress: Progress | None = None


def view_pod(pod: Mapping[str, Any]) -> PodView:
    """Return a pod's view."""
    metadata = pod["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    status = pod.get("status") or {}
    phase = status.get("phase") or "Pending"
    disruption, disrupted_at = _get_disruption(status)
    ended = _get_end(status, phase)
    exit_code, reason, message, finish_time, log = ended or (None, "", "", None, ())
    if exit_code != 0 and reason not in (START_ERROR, "OOMKilled") and disruption:
        reason, message, finish_time = disruption, "", disrupted_at or finish_time
    elif exit_code not in (None, 0) and reason == "Error" and metadata.get("deletionTimestamp"):
        reason = "Deleted"
    return PodView(
        **_read_identity(metadata),
        member=_read_member(metadata["name"], labels),
        phase=phase,
        attempt=_read_number(labels.get(ATTEMPT_LABEL)) or 0,
        restarts=_read_number(annotations.get(RESTARTS_ANNOTATION)) or 0,
        workers=_read_number(annotations.get(WORKERS_ANNOTATION)),
        host=annotations.get(HOST_ANNOTATION, ""),
        exit_code=exit_code,
        reason=reason,
        message=message,
        finish_time=finish_time,
        log=log,
        waiting=None if ended else _get_waiting(status),
        lost=ended is None and _is_lost(status),
        stopped=_is_stopped(pod),
        addresses=_list_addresses(status) if labels.get(REPLICA_TYPE_LABEL) in _ADDRESSED else (),
        created=parse_time(metadata.get("creationTimestamp")),
        scheduled_at=_get_schedule_time(status) if labels.get(REPLICA_TYPE_LABEL) == PROBE else None,
    )


def view_service(service: Mapping[str, Any]) -> ServiceView:
    """Return a Service's view."""
    metadata, spec = service["metadata"], service.get("spec") or {}
    ports = spec.get("ports") or []
    return ServiceView(
        **_read_identity(metadata),
        cluster_ip="" if spec.get("clusterIP") in (None, "None") else spec["clusterIP"],
        port=ports[0].get("port") if ports else None,
    )


def view_endpoint_slice(document: Mapping[str, Any]) -> EndpointSliceView:
    """Return an EndpointSlice's view with its first endpoint; a job's has no others."""
    metadata = document["metadata"]
    endpoint: Mapping[str, Any] = next(iter(document.get("endpoints") or ()), {})
    ports = document.get("ports") or []
    return EndpointSliceView(
        **_read_identity(metadata),
        pod=(endpoint.get("targetRef") or {}).get("uid") or "",
        address=next(iter(endpoint.get("addresses") or ()), ""),
        port=ports[0].get("port") if ports else None,
    )


def view_pod_group(group: Mapping[str, Any]) -> PodGroupView:
    """Return the view of a Volcano or scheduler-plugins PodGroup."""
    metadata = group["metadata"]
    return PodGroupView(
        **_read_identity(metadata),
        minimum=(group.get("spec") or {}).get("minMember"),
        phase=(group.get("status") or {}).get("phase") or "",
    )


def _list_addresses(status: Mapping[str, Any]) -> tuple[str, ...]:
    found = [item.get("ip") for item in status.get("podIPs") or ()] or [status.get("podIP")]
    return tuple(str(address) for address in found if address)


def _is_stopped(pod: Mapping[str, Any]) -> bool:
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    ended = [item for item in containers if (item.get("state") or {}).get("terminated")]
    return bool(ended) and len(ended) == len((pod.get("spec") or {}).get("containers") or containers)


_End = tuple[int, str, str, "datetime.datetime | None", "tuple[str, ...]"]


def _get_end(status: Mapping[str, Any], phase: str) -> _End | None:
    """Return a terminated pod's exit code, reason, message, time and last lines, or None before."""
    containers = status.get("containerStatuses") or []
    main: Mapping[str, Any] = next((item for item in containers if item.get("name") == CONTAINER_NAME), {})
    if terminated := (main.get("state") or {}).get("terminated"):
        return _read_terminated(terminated, "")
    waiting = (main.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") in _PERMANENT_WAITS:
        return 128, START_ERROR, f"{waiting['reason']}: {main.get('image', '')}", None, ()
    if phase == "Succeeded":
        return 0, "Completed", "", None, ()
    if phase != "Failed":
        return None
    for item in status.get("initContainerStatuses") or []:
        terminated = (item.get("state") or {}).get("terminated")
        if terminated and terminated.get("exitCode") != 0:
            return _read_terminated(terminated, f"in its init container '{item.get('name')}'")
    # No container status: the pod never ran, or its node is lost.
    reason = status.get("reason") or "Error"
    return KILLED, _KUBELET_REASONS.get(reason, reason), status.get("message") or "", None, ()


def _read_terminated(terminated: Mapping[str, Any], where: str) -> _End:
    code = int(terminated.get("exitCode", KILLED))
    reason = terminated.get("reason") or ("Completed" if code == 0 else "Error")
    text = (terminated.get("message") or "").strip()
    time = parse_time(terminated.get("finishedAt"))
    if reason in _CANNOT_START:
        return code, START_ERROR, text, time, ()
    log = tuple(line for line in text.splitlines() if not line.startswith(PROGRESS_PREFIX))
    return code, "InitFailed" if where and reason == "Error" else reason, where, time, log


def _get_disruption(status: Mapping[str, Any]) -> tuple[str, datetime.datetime | None]:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = _DISRUPTIONS.get(condition.get("reason") or "", "Evicted")
            return reason, parse_time(condition.get("lastTransitionTime"))
    return "", None


def _is_lost(status: Mapping[str, Any]) -> bool:
    """Return whether the node's controller has set the condition Ready: unlike the kubelet it sets no reason."""
    return any(
        item.get("type") == "Ready" and item.get("status") == "False" and not item.get("reason")
        for item in status.get("conditions") or []
    )


def _get_schedule_time(status: Mapping[str, Any]) -> datetime.datetime | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return parse_time(condition.get("lastTransitionTime"))
    return None


def _get_waiting(status: Mapping[str, Any]) -> Waiting | None:
    containers: Sequence[Mapping[str, Any]] = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for item in containers:
        reason = ((item.get("state") or {}).get("waiting") or {}).get("reason") or ""
        if reason in _RETRIED_WAITS:
            # The message changes with every retry; the image does not.
            return Waiting(_RETRIED_WAITS[reason], f"{_RETRIED_WAITS[reason]}: {item.get('image', '')}")
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _read_unschedulable(condition.get("message") or "")
    return None


def _read_unschedulable(message: str) -> Waiting:
    """Return the scheduler's reasons without node counts, which change with each attempt."""
    reasons, _, preemption = message.partition(" preemption: ")
    text = re.sub(r"^\d+/\d+ nodes are available: ", "", reasons).partition(". ")[0].rstrip(".")
    # Kubernetes 1.34's message: removing all other pods would not help on any node.
    is_permanent = "not helpful" in preemption and "No preemption victims" not in preemption
    reason = UNBOUND_VOLUME if _NO_VOLUME in text else NO_NODE_FITS if is_permanent else UNSCHEDULABLE
    head = "Unschedulable: no node fits" if is_permanent else "Unschedulable"
    return Waiting(reason, f"{head}: " + re.sub(r"(^|, )\d+ ", r"\1", text))


def _read_identity(metadata: Mapping[str, Any]) -> dict[str, Any]:
    owners = metadata.get("ownerReferences") or []
    return {
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "owner": next((str(owner.get("uid", "")) for owner in owners if owner.get("controller")), ""),
        "deleting": bool(metadata.get("deletionTimestamp")),
    }


def _read_member(name: str, labels: Mapping[str, str]) -> str:
    job = labels.get(JOB_LABEL) or ""
    if not name.startswith(f"{job}-{SPARE}-"):
        return name
    return f"{job}-{labels.get(REPLICA_TYPE_LABEL)}-{labels.get(REPLICA_INDEX_LABEL)}"


def _read_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
