"""The state of a pod, as its kubelet, the scheduler and the node controller report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# As for a killed process: a container without a reported exit code.
KILLED = 137


@dataclass(frozen=True, slots=True)
class ContainerTermination:
    """A terminated container.

    Attributes:
        exit_code: Exit code; 137 when the kubelet reports none.
        reason: Such as `Completed`, `Error` or `OOMKilled`; may be empty.
        message: Termination message.
        start_time: Start time, RFC 3339; None without one.
        finish_time: End time, RFC 3339; None without one.
    """

    exit_code: int
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    finish_time: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A container.

    Attributes:
        name: Container name.
        image: Image.
        is_running: Whether the process runs.
        is_init: Whether it is an init container.
        start_time: The running process's start time, RFC 3339.
        waiting_reason: Why it does not run, such as `ImagePullBackOff`; empty when it is not waiting.
        waiting_message: The reason's details.
        termination: How it ended; None before.
        last_termination: How it ended before its last restart.
        restarts: Restart count.
    """

    name: str
    image: str = ""
    is_running: bool = False
    is_init: bool = False
    start_time: str | None = None
    waiting_reason: str = ""
    waiting_message: str = ""
    termination: ContainerTermination | None = None
    last_termination: ContainerTermination | None = None
    restarts: int = 0

    @property
    def has_started(self) -> bool:
        """Whether its process runs or has ended, so that it has a log."""
        return self.is_running or self.termination is not None


@dataclass(frozen=True, slots=True)
class PodCondition:
    """A condition.

    Attributes:
        type: Such as `Ready` or `PodScheduled`.
        status: `True`, `False` or `Unknown`.
        reason: Such as `Unschedulable`; may be empty.
        message: The reason's details.
        time: Last transition time, RFC 3339; None without one.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    time: str | None = None


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod.

    Attributes:
        name: Pod name.
        namespace: Namespace; empty when the document has none.
        uid: UID.
        labels: Labels.
        annotations: Annotations.
        phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        reason: The kubelet's reason, such as `Evicted`; may be empty.
        message: The reason's details.
        node: Node name; empty before the pod is scheduled.
        addresses: IP addresses.
        created: Creation time, RFC 3339.
        start_time: When its kubelet accepted it, RFC 3339.
        is_deleting: Whether it has a deletionTimestamp.
        is_stopped: Whether all its containers have terminated; the kubelet reports it before the phase.
        init_containers: Reported init containers, in their order.
        containers: Reported containers.
        conditions: Conditions by type.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()
    created: str | None = None
    start_time: str | None = None
    is_deleting: bool = False
    is_stopped: bool = False
    init_containers: tuple[ContainerState, ...] = ()
    containers: tuple[ContainerState, ...] = ()
    conditions: Mapping[str, PodCondition] = field(default_factory=dict)

    @property
    def all_containers(self) -> tuple[ContainerState, ...]:
        """Init containers, then containers."""
        return (*self.init_containers, *self.containers)

    @property
    def restarts(self) -> int:
        """Total restart count, without init containers."""
        return sum(item.restarts for item in self.containers)

    @property
    def has_started(self) -> bool:
        """Whether each container runs or has ended."""
        return bool(self.containers) and all(item.has_started for item in self.containers)

    @property
    def is_ready(self) -> bool:
        """Whether it is ready."""
        ready = self.get_condition("Ready")
        return ready is not None and ready.status == "True"

    @property
    def is_node_lost(self) -> bool:
        """Whether its node no longer reports.

        The node controller then sets the condition Ready to False, without the reason that a kubelet sets.
        """
        ready = self.get_condition("Ready")
        return ready is not None and ready.status == "False" and not ready.reason

    @property
    def scheduled_at(self) -> str | None:
        """Since when it has a node, RFC 3339; None before."""
        scheduled = self.get_condition("PodScheduled")
        return scheduled.time if scheduled is not None and scheduled.status == "True" else None

    @property
    def unscheduled(self) -> PodCondition | None:
        """The scheduler's report that it has no node yet; None without one."""
        scheduled = self.get_condition("PodScheduled")
        return scheduled if scheduled is not None and scheduled.status == "False" else None

    @property
    def unschedulable(self) -> str | None:
        """The scheduler's message that no node fits; None without one."""
        unscheduled = self.unscheduled
        return unscheduled.message if unscheduled is not None and unscheduled.reason == "Unschedulable" else None

    @property
    def disruption(self) -> PodCondition | None:
        """The condition DisruptionTarget: preempted, evicted or on a lost node; None without one."""
        target = self.get_condition("DisruptionTarget")
        return target if target is not None and target.status == "True" else None

    def get_condition(self, kind: str) -> PodCondition | None:
        """Return the condition with a type, or None."""
        return self.conditions.get(kind)

    def get_container(self, name: str) -> ContainerState | None:
        """Return the container with a name, or None before the kubelet reports it."""
        return next((item for item in self.containers if item.name == name), None)


def read_pod(document: Mapping[str, Any]) -> PodState:
    """Return a pod's state, from its document."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    containers = _read_containers(status, "containerStatuses")
    stopped = sum(item.termination is not None for item in containers)
    addresses = [item.get("ip") for item in status.get("podIPs") or ()] or [status.get("podIP")]
    return PodState(
        name=metadata["name"],
        namespace=metadata.get("namespace") or "",
        uid=metadata.get("uid") or "",
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        node=spec.get("nodeName") or "",
        addresses=tuple(str(address) for address in addresses if address),
        created=metadata.get("creationTimestamp"),
        start_time=status.get("startTime"),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        # Compared with the spec: the report may lack a container.
        is_stopped=bool(stopped) and stopped == len(spec.get("containers") or containers),
        init_containers=_read_containers(status, "initContainerStatuses", is_init=True),
        containers=containers,
        conditions={item.get("type") or "": _read_condition(item) for item in status.get("conditions") or ()},
    )


def _read_containers(status: Mapping[str, Any], key: str, *, is_init: bool = False) -> tuple[ContainerState, ...]:
    return tuple(_read_container(item, is_init) for item in status.get(key) or ())


def _read_container(item: Mapping[str, Any], is_init: bool) -> ContainerState:
    state = item.get("state") or {}
    waiting, running = state.get("waiting") or {}, state.get("running")
    return ContainerState(
        name=item.get("name") or "",
        image=item.get("image") or "",
        is_running=running is not None,
        is_init=is_init,
        start_time=(running or {}).get("startedAt"),
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        termination=_read_termination(state),
        last_termination=_read_termination(item.get("lastState") or {}),
        restarts=item.get("restartCount") or 0,
    )


def _read_termination(state: Mapping[str, Any]) -> ContainerTermination | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return ContainerTermination(
        exit_code=int(ended.get("exitCode", KILLED)),
        reason=ended.get("reason") or "",
        message=ended.get("message") or "",
        start_time=ended.get("startedAt"),
        finish_time=ended.get("finishedAt"),
    )


def _read_condition(item: Mapping[str, Any]) -> PodCondition:
    return PodCondition(
        type=item.get("type") or "",
        status=item.get("status") or "",
        reason=item.get("reason") or "",
        message=item.get("message") or "",
        time=item.get("lastTransitionTime"),
    )
