"""The operator's actions, as data."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any, Literal

from kfp_mindspore.kube.resources import Resource


@dataclass(frozen=True)
class Create:
    """Create an object. If the name is taken, the next observation has the object that holds it.

    Attributes:
        resource: Object kind.
        body: Object manifest.
        is_optional: Whether the job runs without it: a refusal is logged only.
    """

    resource: Resource
    body: dict[str, Any] = field(hash=False)
    is_optional: bool = False

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.body["metadata"]["name"])


@dataclass(frozen=True)
class Delete:
    """Delete an object and all dependents; one that is already gone is no error.

    Attributes:
        resource: Object kind.
        name: Object name.
        uid: Precondition: another object with that name stays.
        grace_seconds: For a pod: seconds between SIGTERM and SIGKILL; None for the pod's own.
    """

    resource: Resource
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class Assign:
    """Turn a spare pod into a member. A pod whose patch is refused is deleted: the member then gets a new pod.

    Attributes:
        name: The pod's name.
        uid: Precondition: another pod with that name stays as it is.
        metadata: The pod's labels and annotations, as a merge patch.
    """

    name: str
    uid: str
    metadata: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Read:
    """Read a cluster-wide object; the next observation's references have it, or why it cannot be read.

    Attributes:
        resource: Object kind.
        name: Object name.
    """

    resource: Resource
    name: str


@dataclass(frozen=True)
class PatchStatus:
    """Patch an object's status, unless the object has changed; the next observation then has the newer one.

    Attributes:
        resource: Object kind.
        name: Object name.
        uid: Precondition.
        version: Precondition: the observed resourceVersion.
        status: The merge patch.
    """

    resource: Resource
    name: str
    uid: str
    version: str
    status: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class EmitEvent:
    """Emit a Kubernetes event on the job.

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
    """Reconcile the job again no later than at this time; the earliest wins."""

    time: datetime.datetime


Action = Create | Delete | Assign | Read | PatchStatus | EmitEvent | RequeueAt
