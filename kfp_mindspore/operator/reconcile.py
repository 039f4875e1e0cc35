"""The controller's decisions: observed state → actions and status. Pure.

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
no pod and no endpoint from an earlier attempt is left. When the scheduler pod has an address, an EndpointSlice is
created for it. Until all members have run, a missing pod is created; after that, it was deleted.
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
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import list_errors
from kfp_mindspore.operator.actions import Action, RequeueAt
from kfp_mindspore.operator.elastic import (
    decide_growth,
    decide_shrink,
    get_workers,
    list_missing,
)
from kfp_mindspore.operator.gang import Gang, form_gang, get_current
from kfp_mindspore.operator.launch import SCALED_DOWN, launch
from kfp_mindspore.operator.observed import Observed, PodView
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.operator.pods import get_memory_limit, list_replaced_env
from kfp_mindspore.operator.reconcile_state import ReconcileState, read_policy
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


def reconcile(observed: Observed, now: datetime.datetime, options: OperatorOptions | None = None) -> Outcome:
    """Return the actions and status that a job needs.

    Args:
        observed: The observed state.
        now: The present time, with its zone.
        options: The operator's options.
    """
    options = options or OperatorOptions()
    job = observed.job
    if job is None or job["metadata"].get("deletionTimestamp") or not is_managed(job, options):
        return Outcome((), None)
    state = ReconcileState(job, observed, now, options)
    if not state.status.is_finished:
        _proceed(state)
        if state.waiting and state.waiting.message != state.status.waiting:
            state.emit("Warning", "Waiting", state.waiting.message)
        state.status.waiting = state.waiting.message if state.waiting else None
        state.status.waiting_reason = state.waiting.reason if state.waiting else None
    state.status.progress = state.observed.progress or state.status.progress
    if state.status.is_finished:
        state.status.warm_spares = None
        state.clean_up()
    state.status.attempt, state.status.restarts = state.attempt, state.restarts
    return Outcome(tuple(state.actions), write_status(state.status))


def is_managed(job: Mapping[str, Any], options: OperatorOptions) -> bool:
    """Return whether `runPolicy.managedBy` names this operator, or is not set."""
    return (read_policy(job).get("managedBy") or options.manager) == options.manager


def _proceed(state: ReconcileState) -> None:
    document = {key: value for key, value in state.document.items() if key != "status"}
    generation = document["metadata"].get("generation")
    is_validated = generation is not None and generation == state.status.observed_generation
    state.status.observed_generation = generation
    if not is_validated and (errors := list_errors(document)):
        state.finish(FAILED, "InvalidSpec", ValidationError(errors, subject=f"MSJob {state.name}").message)
        return
    job = MSJob.from_dict(document, validate=False)
    policy = job.effective_run_policy
    gang = form_gang(state, job, get_workers(job, state.status.target_workers))
    if state.status.get_condition(CREATED) is None:
        message = f"MSJob {state.name} is created"
        set_condition(state.status, CREATED, "JobCreated", message, state.now)
        state.emit("Normal", "JobCreated", message)
        for sentence in list_replaced_env(job, gang.members):
            state.emit("Warning", "EnvReplaced", sentence)
        if state.lease is not None and parse_lease(state.lease) is None:
            sentence = f"{LEASE_ANNOTATION}: must be an RFC 3339 time, got {state.lease!r}; the job has no lease"
            state.emit("Warning", "InvalidLease", sentence)
    if state.is_lease_expired():
        return
    if policy.suspend:
        _suspend(state, gang)
        return
    if state.status.has(SUSPENDED):
        state.set_condition(SUSPENDED, "JobResumed", f"MSJob {state.name} is resumed", holds=False)
    if state.status.start_time is None:
        state.status.start_time = state.now
    if _is_past_deadline(state, policy.active_deadline_seconds):
        message = f"MSJob {state.name} ran longer than {policy.active_deadline_seconds} s"
        state.finish(FAILED, "DeadlineExceeded", message)
        return
    if (refusal := state.observed.refusal) and refusal.is_permanent:
        state.finish(FAILED, "PodsRefused", refusal.message)
        return
    gang = _decide(state, gang)
    if not state.status.is_finished:
        launch(state, gang)


def _is_past_deadline(state: ReconcileState, seconds: int | None) -> bool:
    start = state.status.start_time
    if seconds is None or start is None:
        return False
    end = start + datetime.timedelta(seconds=seconds)
    if state.now < end:
        state.actions.append(RequeueAt(end))
    return state.now >= end


def _decide(state: ReconcileState, gang: Gang) -> Gang:
    """Finish, restart or scale the job as its pods require; return the next attempt's gang."""
    current = get_current(state, gang)
    sizes = {pod.workers for pod in current.values() if pod.workers is not None} - {gang.workers}
    if sizes:
        was = ", ".join(str(size) for size in sorted(sizes))
        message = f"MSJob {state.name} has {gang.workers} workers instead of {was}: all members start again"
        _restart(state, "JobScaled", message, counted=False)
        return gang
    endings = list_terminations(gang.members, current, launched=state.status.has(RUNNING), host=gang.host)
    decision = decide_job_phase(
        [(ending, gang.job.get_replica_spec(ending.replica_type).effective_restart_policy) for ending in endings],
        success_policy=gang.job.success_policy or "",
        restarts=state.restarts,
        backoff_limit=get_restart_limit(gang.job),
    )
    if decision.action == "continue":
        return _scale(state, gang, current)
    message = decision.message
    if decision.action == "succeed":
        count_replicas(state.status, gang.job, gang.members, current)
        state.finish(SUCCEEDED, decision.reason, message)
        return gang
    assert decision.termination is not None
    pod = current.get(decision.termination.name)
    log = pod.log[-state.options.log_lines :] if pod is not None else ()
    failure = describe_failure(decision.termination, log, state.attempt)
    # A peer's exit is no first failure; the lost member may be on a node that no longer reports.
    state.status.failure = None if failure.exit_code == PEER_LOST_EXIT_CODE else failure
    if failure.reason == "OOMKilled":
        # The last line was printed before and is not the cause.
        if limit := get_memory_limit(gang.job, decision.termination.replica_type):
            message += f"; its memory limit is {limit}"
    elif failure.log:
        message = f"{message}; its last line: {failure.log[-1]}"
    if decision.action == "fail":
        count_replicas(state.status, gang.job, gang.members, current)
        state.finish(FAILED, decision.reason, message)
    else:
        _restart(state, decision.reason, message, counted=decision.counted)
    return gang


def _scale(state: ReconcileState, gang: Gang, current: Mapping[str, PodView]) -> Gang:
    """Change an elastic job's worker count."""
    if state.status.has(RUNNING):
        missing = list_missing(gang.job, gang.members, gang.host, gang.port)
        scaling = decide_growth(gang.job, missing, state.probes, gang.workers, state.now)
    else:
        scaling = decide_shrink(gang.job, gang.members, current, gang.workers, state.now)
    if scaling.due is not None:
        state.actions.append(RequeueAt(scaling.due))
    if scaling.workers == gang.workers:
        return gang
    reason = SCALED_DOWN if scaling.workers < gang.workers else "JobScaledUp"
    message = f"{scaling.reason}: the gang of {gang.workers} workers starts again with {scaling.workers}"
    _restart(state, reason, message, counted=False)
    return form_gang(state, gang.job, scaling.workers)


def _restart(state: ReconcileState, reason: str, message: str, *, counted: bool) -> None:
    state.attempt += 1
    state.restarts += counted
    state.set_condition(RESTARTING, reason, message)


def _suspend(state: ReconcileState, gang: Gang) -> None:
    if not state.status.has(SUSPENDED):
        if state.status.start_time is not None or get_current(state, gang):
            # This gang's pods must not count as pods in the gang after the suspension.
            state.attempt += 1
        state.set_condition(SUSPENDED, "JobSuspended", f"MSJob {state.name} is suspended")
    state.status.start_time = None
    count_replicas(state.status, gang.job, gang.members, {})
    for pod in state.pods:
        state.delete(PODS, pod)
    state.delete(ENDPOINT_SLICES, state.endpoint)
    state.delete(SERVICES, state.service)
    state.delete(state.pod_groups, state.observed.pod_group)
