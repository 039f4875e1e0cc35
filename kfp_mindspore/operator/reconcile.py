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
from kfp_mindspore.msjob.elastic import get_restart_limit
from kfp_mindspore.msjob.manifest import parse_lease
from kfp_mindspore.msjob.names import (
    CREATED,
    FAILED,
    LEASE_ANNOTATION,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
)
from kfp_mindspore.msjob.restart import decide_job_phase
from kfp_mindspore.msjob.topology import get_scheduler_port
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import list_errors
from kfp_mindspore.operator.actions import Action, RequeueAt
from kfp_mindspore.operator.elastic import (
    decide_growth,
    decide_shrink,
    get_workers,
    list_missing,
)
from kfp_mindspore.operator.launch import SCALED_DOWN, GangLaunch
from kfp_mindspore.operator.observed import Observed, PodView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.pods import get_memory_limit, list_replaced_env
from kfp_mindspore.operator.reconcile_state import read_policy
from kfp_mindspore.operator.status import count_replicas, describe_failure, set_condition, write_status
from kfp_mindspore.operator.terminations import list_terminations
from kfp_mindspore.settings import PEER_LOST_EXIT_CODE


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


class _Reconciliation(GangLaunch):
    """One pass over one job, which fills `status` and `actions`."""

    def run(self) -> Outcome:
        if not self.status.is_finished:
            self._proceed()
            if self.waiting and self.waiting != self.status.waiting:
                self.emit("Warning", "Waiting", self.waiting)
            self.status.waiting = self.waiting
        self.status.progress = self.observed.progress or self.status.progress
        if self.status.is_finished:
            self.status.warm_spares = None
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
        self.set_workers(get_workers(self.job, self.status.target_workers))
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
            self.launch()

    def _is_past_deadline(self) -> bool:
        seconds, start = self.policy.active_deadline_seconds, self.status.start_time
        if seconds is None or start is None:
            return False
        end = start + datetime.timedelta(seconds=seconds)
        if self.now < end:
            self.actions.append(RequeueAt(end))
        return self.now >= end

    def _decide(self) -> None:
        current = self.get_current()
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
        self.set_workers(scaling.workers)

    def _restart(self, reason: str, message: str, *, counted: bool) -> None:
        self.attempt += 1
        self.restarts += counted
        self.set_condition(RESTARTING, reason, message)

    def _suspend(self) -> None:
        if not self.status.has(SUSPENDED):
            if self.status.start_time is not None or self.get_current():
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
