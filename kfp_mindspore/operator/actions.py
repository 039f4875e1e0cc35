"""What the operator can do to a cluster, as data."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class CreatePod:
    """Create a pod; that its name is taken already is no error, the next observation tells by whom."""

    body: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])


@dataclass(frozen=True)
class CreateService(CreatePod):
    """Create a Service; its cluster IP is in the API server's answer."""


@dataclass(frozen=True)
class CreateEndpointSlice(CreatePod):
    """Create the EndpointSlice by which a Service leads to its pod."""


@dataclass(frozen=True)
class CreatePodGroup(CreatePod):
    """Create a PodGroup of the gang scheduler, whose group and version are in the body."""


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod.

    Attributes:
        name: Its name.
        uid: Precondition: another pod of that name stays. That it is gone already is no error.
        grace_seconds: Seconds between SIGTERM and SIGKILL; None for the pod's own.
    """

    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class DeleteService:
    """Delete a Service of this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeleteEndpointSlice:
    """Delete an EndpointSlice of this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeletePodGroup:
    """Delete a PodGroup of this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself, of this uid; all that it owns goes with it."""

    name: str
    uid: str


@dataclass(frozen=True)
class EmitEvent:
    """Tell people, by a Kubernetes event of the job.

    Attributes:
        type: `Normal` or `Warning`.
        reason: One word for programs.
        message: A sentence for people.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class RequeueAt:
    """Reconcile the job again at this time, if nothing happens before; several mean the earliest."""

    time: datetime.datetime


Action = (
    CreatePod
    | CreateService
    | CreateEndpointSlice
    | CreatePodGroup
    | DeletePod
    | DeleteService
    | DeleteEndpointSlice
    | DeletePodGroup
    | DeleteJob
    | EmitEvent
    | RequeueAt
)
