"""Decisions of the controller: observed state → actions and status. Pure.

The contract with the caller that applies them:

1. The status, when it differs from the stored one, is written first, under the observed resourceVersion; actions and
   events follow only if that succeeds. So no restart is done without being counted, whenever the operator dies. Attempt
   and counted restarts are also annotated on each pod, and the higher number holds.
2. Actions may be lost, repeated or late: names are fixed, deletes carry a uid, and each action follows again from the
   state as long as it is needed.
3. Neither job nor pods are observed at an older version than before, nor the job older than the operator's own last
   write. A new process starts with a consistent list.
4. A create whose name is taken adds the object that holds the name to the observation.

A gang is launched in this order: PodGroup, Service (its cluster IP is the members' MS_SCHED_HOST), then all pods, once
no pod and no endpoint of an earlier attempt is left. When the scheduler pod has an address, an EndpointSlice is created
for it. Until all members have run, a missing pod is created; after that, it was deleted.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.elastic import get_requested_workers, get_restart_limit
from kfp_mindspore.msjob.manifest import parse_lease
from kfp_mindspore.msjob.names import (
    CREATED,
    FAILED,
    LEASE_ANNOTATION,
    NO_WARM_SPARES,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
)
from kfp_mindspore.msjob.restart import compute_restart_delay, decide_job_phase
from kfp_mindspore.msjob.topology import get_scheduler_port, is_standalone
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import list_errors
from kfp_mindspore.operator.actions import Action, Create, RequeueAt
from kfp_mindspore.operator.elastic import (
    build_probe,
    decide_growth,
    decide_shrink,
    get_probe_time,
    get_workers,
    list_missing,
    name_probe,
)
from kfp_mindspore.operator.observed import ObjectView, Observed, PodView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.pods import build_pod, get_memory_limit, list_members, list_replaced_env
from kfp_mindspore.operator.reconcile_state import ReconcileState, read_policy
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
from kfp_mindspore.operator.status import count_replicas, describe_failure, set_condition, write_status
from kfp_mindspore.operator.terminations import list_terminations
from kfp_mindspore.settings import PEER_LOST_EXIT_CODE

# No watch reports the deletion of objects without the job's label.
_RETRY_SECONDS = 15
SCALED_DOWN = "JobScaledDown"
# Restarts of gangs that have nothing to save: a member has failed, or they have not started.
_WITHOUT_SAVING = frozenset({"JobRestarting", SCALED_DOWN})


class Outcome(NamedTuple):
    """A decision.

    Attributes:
        actions: The actions to apply.
        status: The complete new status; None for no change.
    """

    actions: tuple[Action, ...]
    status: dict[str, Any] | None


def reconcile(observed: Observed, now: datetime.datetime, options: Options | None = None) -> Outcome:
    """Return the actions and status that a job needs.

    Args:
        observed: The observed state.
        now: The present time, with its zone.
        options: The operator's options.
    """
    options = options or Options()
    job = observed.job
    if job is None or job["metadata"].get("deletionTimestamp") or not is_managed(job, options):
        return Outcome((), None)
    return _Reconciliation(job, observed, now, options).run()


def is_managed(job: Mapping[str, Any], options: Options) -> bool:
    """Return whether `runPolicy.managedBy` names this operator, or is not set."""
    return (read_policy(job).get("managedBy") or options.manager) == options.manager


class _Reconciliation(ReconcileState):
    """One pass over one job, which fills `status` and `actions`."""

    def run(self) -> Outcome:
        if not self.status.is_finished:
            self._proceed()
            if self.waiting and self.waiting != self.status.waiting:
                self.emit("Warning", "Waiting", self.waiting)
            self.status.waiting = self.waiting
        self.status.progress = self.observed.progress or self.status.progress
        if self.status.is_finished:
            self.clean_up()
        self.status.attempt, self.status.restarts = self.attempt, self.restarts
        return Outcome(tuple(self.actions), write_status(self.status))

    def _proceed(self) -> None:
        document = {key: value for key, value in self.document.items() if key != "status"}
        generation = document["metadata"].get("generation")
        is_validated = generation is not None and generation == self.status.observed_generation
        self.status.observed_generation = generation
        if not is_validated and (errors := list_errors(document)):
            self.finish(FAILED, "InvalidSpec", ValidationError(errors, subject=f"MSJob {self.name}").message)
            return
        self.job = MSJob.from_dict(document, validate=False)
        self.policy = self.job.effective_run_policy
        self.port = get_scheduler_port(self.job)
        self._set_workers(get_workers(self.job, self.status.target_workers))
        if self.status.get_condition(CREATED) is None:
            message = f"MSJob {self.name} is created"
            set_condition(self.status, CREATED, "JobCreated", message, self.now)
            self.emit("Normal", "JobCreated", message)
            for sentence in list_replaced_env(self.job, self.members):
                self.emit("Warning", "EnvReplaced", sentence)
            if self.lease is not None and parse_lease(self.lease) is None:
                sentence = f"{LEASE_ANNOTATION}: must be an RFC 3339 time, got {self.lease!r}; the job has no lease"
                self.emit("Warning", "InvalidLease", sentence)
        if self.is_lease_expired():
            return
        if self.job.warm_spares:
            self.finish(FAILED, "InvalidSpec", NO_WARM_SPARES)
            return
        if self.policy.suspend:
            self._suspend()
            return
        if self.status.has(SUSPENDED):
            self.set_condition(SUSPENDED, "JobResumed", f"MSJob {self.name} is resumed", holds=False)
        if self.status.start_time is None:
            self.status.start_time = self.now
        if self._is_past_deadline():
            seconds = self.policy.active_deadline_seconds
            self.finish(FAILED, "DeadlineExceeded", f"MSJob {self.name} ran longer than {seconds} s")
            return
        if (refusal := self.observed.refusal) and refusal.is_permanent:
            self.finish(FAILED, "PodsRefused", refusal.message)
            return
        self._decide()
        if not self.status.is_finished:
            self._launch()

    def _set_workers(self, workers: int) -> None:
        self.workers = workers
        self.is_standalone = is_standalone(self.job, workers)
        self.status.target_workers = None if workers == get_requested_workers(self.job) else workers
        self.host = self.service.cluster_ip if self.service and not self.is_standalone else ""
        self.members = list_members(self.job, self.host, self.port, workers)

    def _current(self) -> dict[str, PodView]:
        names = {member.name for member in self.members}
        return {pod.name: pod for pod in self.pods if pod.attempt == self.attempt and pod.name in names}

    def _is_past_deadline(self) -> bool:
        seconds, start = self.policy.active_deadline_seconds, self.status.start_time
        if seconds is None or start is None:
            return False
        end = start + datetime.timedelta(seconds=seconds)
        if self.now < end:
            self.actions.append(RequeueAt(end))
        return self.now >= end

    def _decide(self) -> None:
        current = self._current()
        sizes = {pod.workers for pod in current.values() if pod.workers is not None} - {self.workers}
        if sizes:
            was = ", ".join(str(size) for size in sorted(sizes))
            message = f"MSJob {self.name} has {self.workers} workers instead of {was}: all members start again"
            self._restart("JobScaled", message, counted=False)
            return
        endings = list_terminations(self.members, current, launched=self.status.has(RUNNING), host=self.host)
        decision = decide_job_phase(
            [
                (ending, member.spec.restart_policy or "Never")
                for ending, member in zip(endings, self.members, strict=True)
            ],
            success_policy=self.job.success_policy or "",
            restarts=self.restarts,
            backoff_limit=get_restart_limit(self.job),
        )
        if decision.action == "continue":
            self._scale(current)
            return
        message = decision.message
        if decision.action == "succeed":
            count_replicas(self.status, self.job, self.members, current)
            self.finish(SUCCEEDED, decision.reason, message)
            return
        failures = [
            describe_failure(ending, current[ending.name].log if ending.name in current else (), self.attempt)
            for ending in endings
            if ending.exit_code is not None
        ]
        failure = next(item for item in failures if message.startswith(item.message))
        failure.log = list(failure.log)[-self.options.log_lines :]
        # The exit of a peer is no first failure; the lost member may be on a node that no longer reports.
        self.status.failure = None if failure.exit_code == PEER_LOST_EXIT_CODE else failure
        if failure.reason == "OOMKilled":
            # The last line was printed before and is not the cause.
            limits = (get_memory_limit(member) for member in self.members if member.name == failure.pod)
            message += "".join(f"; its memory limit is {limit}" for limit in limits if limit)
        elif failure.log:
            message = f"{message}; its last line: {failure.log[-1]}"
        if decision.action == "fail":
            count_replicas(self.status, self.job, self.members, current)
            self.finish(FAILED, decision.reason, message)
        else:
            self._restart(decision.reason, message, counted=decision.counted)

    def _scale(self, current: Mapping[str, PodView]) -> None:
        """Change the number of workers of an elastic job."""
        if self.status.has(RUNNING):
            missing = list_missing(self.job, self.members, self.host, self.port)
            scaling = decide_growth(self.job, missing, self.probes, self.workers, self.now)
        else:
            scaling = decide_shrink(self.job, self.members, current, self.workers, self.now)
        if scaling.due is not None:
            self.actions.append(RequeueAt(scaling.due))
        if scaling.workers == self.workers:
            return
        reason = SCALED_DOWN if scaling.workers < self.workers else "JobScaledUp"
        message = f"{scaling.reason}: the gang of {self.workers} workers starts again with {scaling.workers}"
        self._restart(reason, message, counted=False)
        self._set_workers(scaling.workers)

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

    def _launch(self) -> None:
        current = self._current()
        if not self.status.has(RUNNING):
            count_replicas(self.status, self.job, self.members, {})
        is_stale = self.endpoint is not None and is_stale_endpoint(self.endpoint, self.pods, self.host, self.port)
        if is_stale:
            self.delete(ENDPOINT_SLICES, self.endpoint)
        probes = self.probes
        leftovers = [pod for pod in self.pods if current.get(pod.name) is not pod and pod not in probes]
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
        for member in self.members:
            if member.name not in current:
                body = build_pod(
                    self.job,
                    member,
                    workers=self.workers,
                    host=self.host,
                    attempt=self.attempt,
                    restarts=self.restarts,
                    options=self.options,
                )
                self.actions.append(Create(PODS, body))
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
        if group.minimum != get_min_members(self.job, len(self.members)) and not self._current():
            self.delete(self.pod_groups, group)
            return False
        return bool(self._current()) or is_admitted(group, self.options)

    def _has_service(self) -> bool:
        if self.is_standalone:
            return True
        if self.service is None:
            self.actions.append(Create(SERVICES, build_service(self.job, self.port)))
            return False
        if self.service.deleting:
            return False
        if self.service.port != self.port and not self._current():
            self.delete(SERVICES, self.service)
            return False
        return bool(self.service.cluster_ip)

    def _ensure_endpoint_slice(self, scheduler: PodView) -> None:
        if self.endpoint is None and self.host and (address := get_address(scheduler, self.host)):
            body = build_endpoint_slice(self.job, scheduler, address, self.port)
            self.actions.append(Create(ENDPOINT_SLICES, body))

    def _restart(self, reason: str, message: str, *, counted: bool) -> None:
        self.attempt += 1
        self.restarts += counted
        self.set_condition(RESTARTING, reason, message)

    def _suspend(self) -> None:
        if not self.status.has(SUSPENDED):
            if self.status.start_time is not None or self._current():
                # Pods of this gang must not count as those of the gang after the suspension.
                self.attempt += 1
            self.set_condition(SUSPENDED, "JobSuspended", f"MSJob {self.name} is suspended")
        self.status.start_time = None
        count_replicas(self.status, self.job, self.members, {})
        for pod in self.pods:
            self.delete(PODS, pod)
        self.delete(ENDPOINT_SLICES, self.endpoint)
        self.delete(SERVICES, self.service)
        self.delete(self.pod_groups, self.observed.pod_group)
