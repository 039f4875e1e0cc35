"""Views of observed objects, with the fields that decisions need: small, frozen, comparable."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.msjob.api.status import TrainingProgress
from kfp_mindspore.msjob.api.waiting import NO_NODE_FITS, REJECTED, UNBOUND_VOLUME, UNSCHEDULABLE, Waiting

LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)

RESTARTS_ANNOTATION = "mindspore.gitee.com/restarts"
WORKERS_ANNOTATION = "mindspore.gitee.com/workers"
HOST_ANNOTATION = "mindspore.gitee.com/scheduler-host"
# On a Workload: a digest of counts and requests.
POD_SETS_ANNOTATION = "mindspore.gitee.com/pod-sets"
# On a Workload: its priority class, which the spec has in other fields in each version of Kueue's API.
PRIORITY_ANNOTATION = "mindspore.gitee.com/priority-class"
# Cluster-wide objects that a decision has asked for: the object, or why it cannot be read.
References = Mapping[tuple[Resource, str], Mapping[str, Any] | str]

# The replica type for pods that probe for capacity.
PROBE = "probe"
# The replica type for warm spares before they become members.
SPARE = "spare"
_UNSCHEDULABLE = frozenset({UNSCHEDULABLE, NO_NODE_FITS, UNBOUND_VOLUME})


@dataclass(frozen=True, slots=True)
class ObjectView:
    """An object's identity.

    Attributes:
        name: Object name.
        uid: Object uid.
        owner: The controller's uid; empty without one.
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
        member: Member name by the labels: the pod's own, except for a warm spare that became a member.
        phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        attempt: Job attempt, from 0.
        restarts: The job's counted restarts when the pod was created.
        workers: The job's worker count when the pod was created; None without the annotation.
        host: The scheduler's address that it was created with; empty for none.
        exit_code: The training container's exit code; None before it has terminated.
        reason: As in `kfp_mindspore.msjob.decisions.restart.MemberTermination`; set before its end when the pod is
            being disrupted.
        message: The reason's details.
        finish_time: When it was terminated or disrupted.
        log: Last log lines, oldest first, from the termination message.
        waiting: Why it does not start, such as `ImagePullBackOff: no/such:image`; None otherwise.
        lost: Whether the node no longer reports.
        stopped: Whether all containers have terminated; the kubelet reports it before the phase.
        addresses: IP addresses, for a scheduler or spare only.
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
        """Whether all processes have ended."""
        return self.stopped or self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ServiceView(ObjectView):
    """A Service: identity, cluster IP (empty until it is known) and port."""

    cluster_ip: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointSliceView(ObjectView):
    """An EndpointSlice: identity, and the endpoint's pod uid, address and port (empty and None without one)."""

    pod: str = ""
    address: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True)
class PodGroupView(ObjectView):
    """A gang scheduler's PodGroup: identity, minimum member count and phase."""

    minimum: int | None = None
    phase: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadView(ObjectView):
    """A Kueue Workload.

    Attributes:
        version: Its resourceVersion.
        generation: Its generation.
        queue: The LocalQueue's name.
        priority_class: The priority class's name; empty without one.
        is_active: Whether it can be admitted.
        digest: The digest of counts and requests that it was created with.
        status: Its status.
    """

    version: str = ""
    generation: int | None = None
    queue: str = ""
    priority_class: str = ""
    is_active: bool = True
    digest: str = ""
    status: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def get_condition(self, condition: str) -> Mapping[str, Any]:
        """Return a condition; empty without one."""
        found = (item for item in self.status.get("conditions") or [] if item["type"] == condition)
        return next(found, {})

    def has(self, condition: str) -> bool:
        """Return whether a condition holds."""
        return self.get_condition(condition).get("status") == "True"


@dataclass(frozen=True)
class Refusal:
    """The API server's refusal to create a job's object.

    Attributes:
        message: The refusal's message.
        reason: As in `kfp_mindspore.msjob.api.waiting.Waiting`.
        is_permanent: Whether retries are refused too: the pod is invalid, or violates the namespace's Pod Security.
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
        workload: The Workload with the name of the job's; None without one.
        references: The cluster-wide objects read for this decision.
    """

    job: Mapping[str, Any] | None
    pods: tuple[PodView, ...] = ()
    services: tuple[ServiceView, ...] = ()
    endpoint_slices: tuple[EndpointSliceView, ...] = ()
    pod_group: PodGroupView | None = None
    refusal: Refusal | None = None
    connected_at: datetime.datetime | None = LONG_AGO
    progress: TrainingProgress | None = None
    workload: WorkloadView | None = None
    references: References = field(default_factory=dict)


def view_service(service: Mapping[str, Any]) -> ServiceView:
    """Return a Service's view."""
    metadata, spec = service["metadata"], service.get("spec") or {}
    ports = spec.get("ports") or []
    return ServiceView(
        **read_identity(metadata),
        cluster_ip="" if spec.get("clusterIP") in (None, "None") else spec["clusterIP"],
        port=ports[0].get("port") if ports else None,
    )


def view_endpoint_slice(document: Mapping[str, Any]) -> EndpointSliceView:
    """Return an EndpointSlice's view with its first endpoint; a job's has no others."""
    metadata = document["metadata"]
    endpoint: Mapping[str, Any] = next(iter(document.get("endpoints") or ()), {})
    ports = document.get("ports") or []
    return EndpointSliceView(
        **read_identity(metadata),
        pod=(endpoint.get("targetRef") or {}).get("uid") or "",
        address=next(iter(endpoint.get("addresses") or ()), ""),
        port=ports[0].get("port") if ports else None,
    )


def view_pod_group(group: Mapping[str, Any]) -> PodGroupView:
    """Return the view of a Volcano or scheduler-plugins PodGroup."""
    metadata = group["metadata"]
    return PodGroupView(
        **read_identity(metadata),
        minimum=(group.get("spec") or {}).get("minMember"),
        phase=(group.get("status") or {}).get("phase") or "",
    )


def view_workload(workload: Mapping[str, Any]) -> WorkloadView:
    """Return a Workload's view."""
    metadata, spec = workload["metadata"], workload.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    return WorkloadView(
        **read_identity(metadata),
        version=str(metadata.get("resourceVersion") or ""),
        generation=metadata.get("generation"),
        queue=spec.get("queueName") or "",
        priority_class=annotations.get(PRIORITY_ANNOTATION) or "",
        is_active=spec.get("active") is not False,
        digest=annotations.get(POD_SETS_ANNOTATION) or "",
        status=workload.get("status") or {},
    )


def read_identity(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's name, uid, owner and deletion, as arguments of `ObjectView`."""
    owners = metadata.get("ownerReferences") or []
    return {
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "owner": next((str(owner.get("uid", "")) for owner in owners if owner.get("controller")), ""),
        "deleting": bool(metadata.get("deletionTimestamp")),
    }
