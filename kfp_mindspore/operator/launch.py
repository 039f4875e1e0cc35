"""The launch of a gang: the objects that the present attempt needs, in their order. Pure."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence

from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.elastic import get_requested_workers
from kfp_mindspore.msjob.names import RESTARTING, RUNNING, WORKER
from kfp_mindspore.msjob.restart import compute_restart_delay
from kfp_mindspore.msjob.spec import RunPolicy
from kfp_mindspore.msjob.topology import Member, is_standalone
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.actions import Action, Create, RequeueAt
from kfp_mindspore.operator.elastic import build_probe, get_probe_time, list_missing, name_probe
from kfp_mindspore.operator.observed import UNSCHEDULABLE, ObjectView, PodView
from kfp_mindspore.operator.pods import build_pod, list_members
from kfp_mindspore.operator.reconcile_state import ReconcileState
from kfp_mindspore.operator.services import (
    build_endpoint_slice,
    build_pod_group,
    build_service,
    get_address,
    get_min_members,
    get_service_name,
    is_admitted,
    is_stale_endpoint,
)
from kfp_mindspore.operator.spares import (
    SPARE_DELAY_SECONDS,
    build_assignment,
    build_spare,
    can_take,
    describe_spares,
    explain_no_spares,
    is_usable,
    name_spare,
)
from kfp_mindspore.operator.status import count_replicas

# No watch reports the deletion of objects without the job's label.
_RETRY_SECONDS = 15
_SPARE_RETRY_SECONDS = 60
SCALED_DOWN = "JobScaledDown"
# Restarts of gangs that have nothing to save: a member has failed, or they have not started.
_WITHOUT_SAVING = frozenset({"JobRestarting", SCALED_DOWN})


class GangLaunch(ReconcileState):
    """The pass over a job with its members, and the creation of its objects.

    Attributes:
        job: The job, once its spec is valid.
        policy: Its run policy.
        port: The scheduler's port.
        workers: Number of workers of the present attempt.
        is_standalone: Whether the gang is one plain process.
        host: The Service's cluster IP; empty before, and for a standalone job.
        members: The members of the present attempt.
    """

    job: MSJob
    policy: RunPolicy
    port: int
    workers: int
    is_standalone: bool
    host: str
    members: tuple[Member, ...]

    def set_workers(self, workers: int) -> None:
        """Set the number of workers of the present attempt."""
        self.workers = workers
        self.is_standalone = is_standalone(self.job, workers)
        self.status.target_workers = None if workers == get_requested_workers(self.job) else workers
        self.host = self.service.cluster_ip if self.service and not self.is_standalone else ""
        self.members = list_members(self.job, self.host, self.port, workers)

    def get_current(self) -> dict[str, PodView]:
        """Return the present attempt's pods by member."""
        names = {member.name for member in self.members}
        return {pod.member: pod for pod in self.pods if pod.attempt == self.attempt and pod.member in names}

    def launch(self) -> None:
        """Delete the objects of earlier attempts, then create those of the present one."""
        current = self.get_current()
        if not self.status.has(RUNNING):
            count_replicas(self.status, self.job, self.members, {})
        is_stale = self.endpoint is not None and is_stale_endpoint(self.endpoint, self.pods, self.host, self.port)
        if is_stale:
            self.delete(ENDPOINT_SLICES, self.endpoint)
        kept = {pod.uid for pod in (*current.values(), *self.probes, *self.spares)}
        leftovers = [pod for pod in self.pods if pod.uid not in kept]
        if not self.status.has(RUNNING):
            self._release_spares(current)
        if leftovers:
            restarting = self.status.get_condition(RESTARTING)
            failed = restarting is not None and restarting.status == "True" and restarting.reason in _WITHOUT_SAVING
            for pod in leftovers:
                self.delete(PODS, pod, self.options.failure_grace_seconds if failed else None)
            return
        self.waiting = refusal.message if (refusal := self.observed.refusal) else None
        if self._must_pause() or self._is_name_taken() or not self._is_admitted() or not self._has_service():
            return
        scheduler = current.get(get_service_name(self.name))
        if scheduler is not None and scheduler.is_finished:
            # No live scheduler: create no endpoint.
            scheduler = None
        elif is_stale:
            return
        if scheduler is not None:
            self._ensure_endpoint_slice(scheduler)
        self._add_members([member for member in self.members if member.name not in current])
        if not self.status.has(RUNNING):
            pods = [current[member.name] for member in self.members if member.name in current]
            started = [pod for pod in pods if pod.phase == "Running" or pod.exit_code is not None]
            if len(started) == len(self.members):
                self.set_condition(RUNNING, "JobRunning", f"MSJob {self.name} is running")
            reasons = [f"{pod.name}: {pod.waiting_reason}" for pod in pods if pod.waiting_reason]
            if reasons:
                # Emit each reason once per job, not once per pod.
                self.waiting = self.status.waiting if self.status.waiting in reasons else reasons[0]
        if self.status.has(RUNNING):
            count_replicas(self.status, self.job, self.members, current)
            self._probe()
            self._add_spares()

    def _add_members(self, missing: Sequence[Member]) -> None:
        """Assign the usable spares, to workers first, and create the other pods."""
        spares = sorted(filter(is_usable, self.spares), key=lambda pod: pod.name)
        takers = [member for member in missing if can_take(self.job, member)]
        takers.sort(key=lambda member: member.replica_type != WORKER)
        assigned = {member.name: spare for member, spare in zip(takers, spares, strict=False)}
        for member in missing:
            if spare := assigned.get(member.name):
                action: Action = build_assignment(
                    spare,
                    member,
                    workers=self.workers,
                    host=self.host,
                    attempt=self.attempt,
                    restarts=self.restarts,
                )
            else:
                body = build_pod(
                    self.job,
                    member,
                    workers=self.workers,
                    host=self.host,
                    attempt=self.attempt,
                    restarts=self.restarts,
                    options=self.options,
                )
                action = Create(PODS, body)
            self.actions.append(action)

    def _release_spares(self, current: Mapping[str, PodView]) -> None:
        """Delete the spares of a gang that starts which it cannot use, or whose nodes its members need."""
        is_blocked = any(pod.waiting_reason.startswith(UNSCHEDULABLE) for pod in current.values())
        for pod in self.spares:
            if is_blocked or not is_usable(pod):
                self.delete(PODS, pod)

    def _add_spares(self) -> None:
        """Create the spares of a gang that runs, once it has had time to import MindSpore itself."""
        wanted = self.job.warm_spares or 0
        is_whole = not list_missing(self.job, self.members, self.host, self.port)
        spares = [pod for pod in self.spares if not pod.deleting]
        # An elastic gang needs the nodes to grow.
        for pod in spares[wanted if is_whole else 0 :]:
            self.delete(PODS, pod)
        before, self.status.warm_spares = self.status.warm_spares, None
        if not wanted or not is_whole:
            return
        problem = explain_no_spares(self.job, self.options)
        self.status.warm_spares = f"0/{wanted}; {problem}" if problem else describe_spares(spares, wanted)
        if (problem or any(pod.exit_code is not None for pod in spares)) and self.status.warm_spares != before:
            self.emit("Warning", "NoWarmSpares", self.status.warm_spares)
        running = self.status.get_condition(RUNNING)
        due = (running and running.last_transition_time) or self.now
        due += datetime.timedelta(seconds=SPARE_DELAY_SECONDS)
        if problem or len(spares) >= wanted or any(pod.exit_code is not None for pod in spares):
            return
        if self.now < due:
            self.actions.append(RequeueAt(due))
            return
        # A quota may refuse them.
        self.actions.append(RequeueAt(self.now + datetime.timedelta(seconds=_SPARE_RETRY_SECONDS)))
        worker = next(member for member in self.members if member.replica_type == WORKER)
        names = {pod.name for pod in self.observed.pods}
        free = (number for number in itertools.count() if name_spare(self.job, self.attempt, number) not in names)
        for number in itertools.islice(free, wanted - len(spares)):
            body = build_spare(
                self.job, worker, number, attempt=self.attempt, restarts=self.restarts, options=self.options
            )
            self.actions.append(Create(PODS, body, is_optional=True))

    def _must_pause(self) -> bool:
        condition = self.status.get_condition(RESTARTING)
        if condition is None or condition.status != "True" or condition.reason != "JobRestarting":
            return False
        start = (condition.last_update_time or self.now) + datetime.timedelta(
            seconds=compute_restart_delay(self.restarts)
        )
        if self.now < start:
            self.actions.append(RequeueAt(start))
        return self.now < start

    def _is_name_taken(self) -> bool:
        names = {member.name for member in self.members}
        taken: list[tuple[str, ObjectView]] = [
            ("pod", pod) for pod in self.observed.pods if pod.name in names and pod.owner != self.uid
        ]
        if not self.is_standalone:
            taken += self.foreign
        group = self.observed.pod_group
        if group is not None and group.owner != self.uid and self.options.gang_scheduler != "none":
            taken.append(("PodGroup", group))
        if taken:
            text = ", ".join(f"{kind} {item.name}" for kind, item in taken)
            reason = "does not belong to this job; delete or rename it"
            if all(item.owner for _, item in taken):
                # A job was deleted and created again: its pods end within their grace period.
                reason = "has another owner, such as an earlier job of this name that is being deleted"
            self.waiting = f"{text}: exists and {reason}"
            self.actions.append(RequeueAt(self.now + datetime.timedelta(seconds=_RETRY_SECONDS)))
        return bool(taken)

    def _is_admitted(self) -> bool:
        if self.pod_groups is None:
            return True
        group = self.observed.pod_group
        if group is None:
            self.actions.append(Create(self.pod_groups, build_pod_group(self.job, self.members, self.options)))
            # The Service needs no admission.
            self._has_service()
            return False
        if group.deleting:
            return False
        if group.minimum != get_min_members(self.job, len(self.members)) and not self.get_current():
            self.delete(self.pod_groups, group)
            return False
        return bool(self.get_current()) or is_admitted(group, self.options)

    def _has_service(self) -> bool:
        if self.is_standalone:
            return True
        if self.service is None:
            self.actions.append(Create(SERVICES, build_service(self.job, self.port)))
            return False
        if self.service.deleting:
            return False
        if self.service.port != self.port and not self.get_current():
            self.delete(SERVICES, self.service)
            return False
        return bool(self.service.cluster_ip)

    def _ensure_endpoint_slice(self, scheduler: PodView) -> None:
        if self.endpoint is None and self.host and (address := get_address(scheduler, self.host)):
            body = build_endpoint_slice(self.job, scheduler, address, self.port)
            self.actions.append(Create(ENDPOINT_SLICES, body))

    def _probe(self) -> None:
        """Create the probes of an elastic job that runs with fewer workers than requested, and delete others."""
        missing = list_missing(self.job, self.members, self.host, self.port)
        running = self.status.get_condition(RUNNING)
        due = get_probe_time(self.job, (running and running.last_transition_time) or self.now)
        if missing and self.now < due:
            self.actions.append(RequeueAt(due))
            missing = []
        wanted = {name_probe(self.job, member): member for member in missing}
        for pod in self.probes:
            if pod.name not in wanted:
                self.delete(PODS, pod)
        for name in wanted.keys() - {pod.name for pod in self.observed.pods}:
            body = build_probe(
                self.job, wanted[name], attempt=self.attempt, restarts=self.restarts, options=self.options
            )
            self.actions.append(Create(PODS, body))
