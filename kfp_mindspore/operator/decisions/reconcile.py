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
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.api.kueue import WORKLOADS
from kfp_mindspore.msjob.api.manifest import parse_lease
from kfp_mindspore.msjob.api.names import (
    CREATED,
    FAILED,
    LEASE_ANNOTATION,
    QUEUE_LABEL,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    WORKER,
)
from kfp_mindspore.msjob.api.waiting import QUEUE_IGNORED, QUEUED, Waiting
from kfp_mindspore.msjob.decisions.elastic import get_requested_workers, get_restart_limit
from kfp_mindspore.msjob.decisions.restart import Decision, compute_restart_delay, decide_job_phase
from kfp_mindspore.msjob.decisions.topology import Member, get_scheduler_port, is_standalone
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import list_errors
from kfp_mindspore.operator.decisions.actions import Action, Create, RequeueAt
from kfp_mindspore.operator.decisions.admission import create_pod, enqueue, has_flavors, report_to_queue
from kfp_mindspore.operator.decisions.elastic import (
    build_probe,
    decide_growth,
    decide_shrink,
    get_probe_time,
    get_workers,
    list_missing_members,
    name_probe,
)
from kfp_mindspore.operator.decisions.kueue import explain_hold, get_admitted_workers
from kfp_mindspore.operator.decisions.observed import ObjectView, Observed, PodView
from kfp_mindspore.operator.decisions.pods import build_pod, get_memory_limit, list_members, list_replaced_env
from kfp_mindspore.operator.decisions.reconcile_state import ReconcileState, read_policy
from kfp_mindspore.operator.decisions.services import (
    build_endpoint_slice,
    build_pod_group,
    build_service,
    get_address,
    get_min_members,
    get_service_name,
    is_admitted,
    is_stale_endpoint,
)
from kfp_mindspore.operator.decisions.spares import (
    SPARE_DELAY_SECONDS,
    build_assignment,
    build_spare,
    can_take,
    describe_spares,
    explain_no_spares,
    is_usable,
    name_spare,
)
from kfp_mindspore.operator.decisions.status import count_replicas, describe_failure, set_condition, write_status
from kfp_mindspore.operator.decisions.terminations import list_terminations
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.settings import PEER_LOST_EXIT_CODE

_SPARE_RETRY_SECONDS = 60
_SCALED_DOWN = "JobScaledDown"
# Restarts for gangs that have nothing to save: a member has failed, or they have not started.
_WITHOUT_SAVING = frozenset({"JobRestarting", _SCALED_DOWN})


class Outcome(NamedTuple):
    """A decision.

    Attributes:
        actions: The actions to apply.
        status: The complete new status; None for no change.
    """

    actions: tuple[Action, ...]
    status: dict[str, Any] | None


@dataclass(frozen=True)
class Gang:
    """The present attempt's members.

    Attributes:
        job: The job, whose spec is valid.
        workers: Worker count.
        limit: The most workers that it may grow to.
        port: The scheduler's port.
        is_standalone: Whether the gang is one plain process.
        host: The Service's cluster IP; empty before, and for a standalone job.
        members: The gang's members.
    """

    job: MSJob
    workers: int
    limit: int
    port: int
    is_standalone: bool
    host: str
    members: tuple[Member, ...]


def reconcile(observed: Observed, now: datetime.datetime, options: OperatorOptions | None = None) -> Outcome:
    """Return the actions and status that a job needs.

    Args:
        observed: The observed state.
        now: The present time, with a time zone.
        options: The operator's options.
    """
    options = options or OperatorOptions()
    job = observed.job
    if job is None or job["metadata"].get("deletionTimestamp") or not is_managed(job, options):
        return Outcome((), None)
    state = ReconcileState(job, observed, now, options)
    if not state.status.is_finished:
        _proceed(state, job)
        if state.waiting and state.waiting.message != state.status.waiting:
            state.emit("Normal" if state.waiting.reason == QUEUED else "Warning", "Waiting", state.waiting.message)
        state.status.waiting = state.waiting.message if state.waiting else None
        state.status.waiting_reason = state.waiting.reason if state.waiting else None
        state.status.progress = state.observed.progress or state.status.progress
    if state.status.is_finished:
        state.status.warm_spares = None
        state.clean_up()
    report_to_queue(state)
    state.status.attempt, state.status.restarts = state.attempt, state.restarts
    return Outcome(tuple(state.actions), write_status(state.status))


def is_managed(job: Mapping[str, Any], options: OperatorOptions) -> bool:
    """Return whether `runPolicy.managedBy` names this operator, or is not set."""
    return (read_policy(job).get("managedBy") or options.manager) == options.manager


def _proceed(state: ReconcileState, stored: Mapping[str, Any]) -> None:
    document = {key: value for key, value in stored.items() if key != "status"}
    generation = document["metadata"].get("generation")
    is_validated = generation is not None and generation == state.status.observed_generation
    state.status.observed_generation = generation
    if not is_validated and (errors := list_errors(document)):
        state.finish(FAILED, "InvalidSpec", ValidationError(errors, subject=f"MSJob {state.name}").message)
        return
    job = MSJob.from_dict(document, validate=False)
    policy = job.effective_run_policy
    gang = _form_gang(state, job, get_workers(job, state.status.target_workers))
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
        _suspend(state, gang, "JobSuspended", f"MSJob {state.name} is suspended")
        if not state.pods:
            # A resumed job is queued again.
            state.delete(WORKLOADS, state.workload)
        return
    if _is_held(state, gang):
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
        _launch(state, gang)


def _is_past_deadline(state: ReconcileState, seconds: int | None) -> bool:
    start = state.status.start_time
    if seconds is None or start is None:
        return False
    end = start + datetime.timedelta(seconds=seconds)
    if state.now < end:
        state.actions.append(RequeueAt(end))
    return state.now >= end


def _decide(state: ReconcileState, gang: Gang) -> Gang:
    """Finish, restart or scale the job as the pods require; return the next attempt's gang."""
    current = _get_current(state, gang)
    sizes = {pod.workers for pod in current.values() if pod.workers is not None} - {gang.workers}
    if sizes:
        was = ", ".join(str(size) for size in sorted(sizes))
        message = f"MSJob {state.name} has {gang.workers} workers instead of {was}: all members start again"
        _restart(state, "JobScaled", message, counted=False)
        return gang
    decision = _decide_phase(state, gang, current)
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


def _decide_phase(state: ReconcileState, gang: Gang, current: Mapping[str, PodView]) -> Decision:
    endings = list_terminations(gang.members, current, launched=state.status.has(RUNNING), host=gang.host)
    return decide_job_phase(
        [(ending, gang.job.get_replica_spec(ending.replica_type).effective_restart_policy) for ending in endings],
        success_policy=gang.job.success_policy or "",
        restarts=state.restarts,
        backoff_limit=get_restart_limit(gang.job),
    )


def _scale(state: ReconcileState, gang: Gang, current: Mapping[str, PodView]) -> Gang:
    """Change an elastic job's worker count."""
    if state.status.has(RUNNING):
        missing = _list_missing(gang)
        scaling = decide_growth(gang.job, missing, state.probes, gang.workers, state.now)
    else:
        scaling = decide_shrink(gang.job, gang.members, current, gang.workers, state.now)
    if scaling.due is not None:
        state.actions.append(RequeueAt(scaling.due))
    if scaling.workers == gang.workers:
        return gang
    reason = _SCALED_DOWN if scaling.workers < gang.workers else "JobScaledUp"
    message = f"{scaling.reason}: the gang of {gang.workers} workers starts again with {scaling.workers}"
    _restart(state, reason, message, counted=False)
    return _form_gang(state, gang.job, scaling.workers)


def _restart(state: ReconcileState, reason: str, message: str, *, counted: bool) -> None:
    state.attempt += 1
    state.restarts += counted
    state.set_condition(RESTARTING, reason, message)


def _suspend(state: ReconcileState, gang: Gang, reason: str, message: str) -> None:
    before = state.status.get_condition(SUSPENDED)
    is_started = state.status.start_time is not None or bool(_get_current(state, gang))
    if is_started and not state.status.has(SUSPENDED):
        # This gang's pods must not count as pods in the gang after the suspension.
        state.attempt += 1
    if before is None or (before.status, before.reason) != ("True", reason):
        state.set_condition(SUSPENDED, reason, message)
    state.status.start_time = None
    count_replicas(state.status, gang.job, gang.members, {})
    for pod in state.pods:
        state.delete(PODS, pod)
    state.delete(ENDPOINT_SLICES, state.endpoint)
    state.delete(SERVICES, state.service)
    state.delete(state.pod_groups, state.observed.pod_group)


def _is_held(state: ReconcileState, gang: Gang) -> bool:
    """Return whether a job may have no pods because its queue has not admitted it; those that it has are stopped."""
    if not state.queue:
        state.delete(WORKLOADS, state.workload)
        return False
    if not state.options.kueue:
        if not state.pods:
            count_replicas(state.status, gang.job, gang.members, {})
            message = (
                f'queue "{state.queue}": the operator runs without --kueue and starts no job with a queue; install it '
                f"with: kfp-mindspore operator install --kueue, or remove the label {QUEUE_LABEL}"
            )
            state.waiting = Waiting(QUEUE_IGNORED, message)
        return not state.pods
    if not (hold := explain_hold(state.workload, gang.job)):
        return False
    if _decide_phase(state, gang, _get_current(state, gang)).action in ("succeed", "fail"):
        # It ended before it could be stopped.
        _decide(state, gang)
        return True
    message = f'queue "{state.queue}": {hold}'
    state.waiting = Waiting(QUEUED, message)
    if state.status.start_time is not None or state.pods or state.status.has(SUSPENDED):
        _suspend(state, gang, "JobQueued", f"MSJob {state.name} waits: {message}")
    if not state.pods:
        # The admitted count is the next gang's size.
        gang = _form_gang(state, gang.job, get_requested_workers(gang.job))
        count_replicas(state.status, gang.job, gang.members, {})
        enqueue(state, gang.job)
    return True


def _list_missing(gang: Gang) -> list[Member]:
    return list_missing_members(gang.job, gang.members, gang.host, gang.port, gang.limit)


def _form_gang(state: ReconcileState, job: MSJob, workers: int) -> Gang:
    """Return the gang with a given worker count, at most what a queue admits, and record the count in the status."""
    limit = min(get_requested_workers(job), get_admitted_workers(state.workload) or get_requested_workers(job))
    workers = min(workers, limit)
    state.status.target_workers = None if workers == get_requested_workers(job) else workers
    standalone = is_standalone(job, workers)
    host = state.service.cluster_ip if state.service and not standalone else ""
    port = get_scheduler_port(job)
    return Gang(job, workers, limit, port, standalone, host, list_members(job, host, port, workers))


def _get_current(state: ReconcileState, gang: Gang) -> Mapping[str, PodView]:
    """Return the present attempt's pods by member."""
    names = {member.name for member in gang.members}
    return {pod.member: pod for pod in state.pods if pod.attempt == state.attempt and pod.member in names}


def _launch(state: ReconcileState, gang: Gang) -> None:
    """Delete earlier attempts' objects, then create the present attempt's."""
    current = _get_current(state, gang)
    if not state.status.has(RUNNING):
        count_replicas(state.status, gang.job, gang.members, {})
    is_stale = state.endpoint is not None and is_stale_endpoint(state.endpoint, state.pods, gang.host, gang.port)
    if is_stale:
        state.delete(ENDPOINT_SLICES, state.endpoint)
    kept = {pod.uid for pod in (*current.values(), *state.probes, *state.spares)}
    leftovers = [pod for pod in state.pods if pod.uid not in kept]
    if not state.status.has(RUNNING):
        _release_spares(state, current)
    if leftovers:
        restarting = state.status.get_condition(RESTARTING)
        failed = restarting is not None and restarting.status == "True" and restarting.reason in _WITHOUT_SAVING
        for pod in leftovers:
            state.delete(PODS, pod, state.options.failure_grace_seconds if failed else None)
        return
    refusal = state.observed.refusal
    state.waiting = Waiting(refusal.reason, refusal.message) if refusal else None
    if (
        _must_pause(state)
        or _is_name_taken(state, gang)
        or not _is_admitted(state, gang)
        or not _has_service(state, gang)
    ):
        return
    scheduler = current.get(get_service_name(state.name))
    if scheduler is not None and scheduler.is_finished:
        # No live scheduler: create no endpoint.
        scheduler = None
    elif is_stale:
        return
    if scheduler is not None:
        _ensure_endpoint_slice(state, gang, scheduler)
    missing = [member for member in gang.members if member.name not in current]
    if missing and not has_flavors(state):
        return
    _add_members(state, gang, missing)
    if state.status.is_finished:
        return
    if not state.status.has(RUNNING):
        pods = [current[member.name] for member in gang.members if member.name in current]
        started = [pod for pod in pods if pod.phase == "Running" or pod.exit_code is not None]
        if len(started) == len(gang.members):
            state.set_condition(RUNNING, "JobRunning", f"MSJob {state.name} is running")
        reasons = [Waiting(pod.waiting.reason, f"{pod.name}: {pod.waiting.message}") for pod in pods if pod.waiting]
        if reasons:
            # Emit each reason once per job, not once per pod.
            present = (item for item in reasons if item.message == state.status.waiting)
            state.waiting = next(present, reasons[0])
    if state.status.has(RUNNING):
        count_replicas(state.status, gang.job, gang.members, current)
        _probe(state, gang)
        _add_spares(state, gang)


def _add_members(state: ReconcileState, gang: Gang, missing: Sequence[Member]) -> None:
    """Assign the usable spares, to workers first, and create the other pods."""
    spares = sorted(filter(is_usable, state.spares), key=lambda pod: pod.name)
    takers = [member for member in missing if can_take(gang.job, member)]
    takers.sort(key=lambda member: member.replica_type != WORKER)
    assigned = {member.name: spare for member, spare in zip(takers, spares, strict=False)}
    for member in missing:
        if spare := assigned.get(member.name):
            action = build_assignment(
                spare,
                member,
                workers=gang.workers,
                host=gang.host,
                attempt=state.attempt,
                restarts=state.restarts,
            )
            state.actions.append(action)
        else:
            body = build_pod(
                gang.job,
                member,
                workers=gang.workers,
                host=gang.host,
                attempt=state.attempt,
                restarts=state.restarts,
                options=state.options,
            )
            create_pod(state, body, member.replica_type)


def _release_spares(state: ReconcileState, current: Mapping[str, PodView]) -> None:
    """Delete spares that a starting gang cannot use, or whose nodes the members need."""
    is_blocked = any(pod.is_unschedulable for pod in current.values())
    for pod in state.spares:
        if is_blocked or not is_usable(pod):
            state.delete(PODS, pod)


def _add_spares(state: ReconcileState, gang: Gang) -> None:
    """Create a running gang's spares, once it has had time to import MindSpore itself."""
    wanted = gang.job.warm_spares or 0
    is_whole = not _list_missing(gang)
    spares = [pod for pod in state.spares if not pod.deleting]
    # An elastic gang needs the nodes to grow.
    for pod in spares[wanted if is_whole else 0 :]:
        state.delete(PODS, pod)
    before, state.status.warm_spares = state.status.warm_spares, None
    if not wanted or not is_whole:
        return
    problem = explain_no_spares(gang.job, state.options)
    state.status.warm_spares = f"0/{wanted}; {problem}" if problem else describe_spares(spares, wanted)
    if (problem or any(pod.exit_code is not None for pod in spares)) and state.status.warm_spares != before:
        state.emit("Warning", "NoWarmSpares", state.status.warm_spares)
    running = state.status.get_condition(RUNNING)
    due = (running and running.last_transition_time) or state.now
    due += datetime.timedelta(seconds=SPARE_DELAY_SECONDS)
    if problem or len(spares) >= wanted or any(pod.exit_code is not None for pod in spares):
        return
    if state.now < due:
        state.actions.append(RequeueAt(due))
        return
    # A quota may refuse them.
    state.actions.append(RequeueAt(state.now + datetime.timedelta(seconds=_SPARE_RETRY_SECONDS)))
    worker = next(member for member in gang.members if member.replica_type == WORKER)
    names = {pod.name for pod in state.observed.pods}
    free = (number for number in itertools.count() if name_spare(gang.job, state.attempt, number) not in names)
    for number in itertools.islice(free, wanted - len(spares)):
        body = build_spare(
            gang.job, worker, number, attempt=state.attempt, restarts=state.restarts, options=state.options
        )
        state.actions.append(Create(PODS, body, is_optional=True))


def _must_pause(state: ReconcileState) -> bool:
    condition = state.status.get_condition(RESTARTING)
    if condition is None or condition.status != "True" or condition.reason != "JobRestarting":
        return False
    start = (condition.last_update_time or state.now) + datetime.timedelta(
        seconds=compute_restart_delay(state.restarts)
    )
    if state.now < start:
        state.actions.append(RequeueAt(start))
    return state.now < start


def _is_name_taken(state: ReconcileState, gang: Gang) -> bool:
    names = {member.name for member in gang.members}
    taken: list[tuple[str, ObjectView]] = [
        ("pod", pod) for pod in state.observed.pods if pod.name in names and pod.owner != state.uid
    ]
    if not gang.is_standalone:
        taken += state.foreign
    group = state.observed.pod_group
    if group is not None and group.owner != state.uid and state.options.gang_scheduler != "none":
        taken.append(("PodGroup", group))
    if taken:
        state.report_taken(taken)
    return bool(taken)


def _is_admitted(state: ReconcileState, gang: Gang) -> bool:
    if state.pod_groups is None:
        return True
    group = state.observed.pod_group
    if group is None:
        state.actions.append(Create(state.pod_groups, build_pod_group(gang.job, gang.members, state.options)))
        # The Service needs no admission.
        _has_service(state, gang)
        return False
    if group.deleting:
        return False
    if group.minimum != get_min_members(gang.job, len(gang.members)) and not _get_current(state, gang):
        state.delete(state.pod_groups, group)
        return False
    return bool(_get_current(state, gang)) or is_admitted(group, state.options)


def _has_service(state: ReconcileState, gang: Gang) -> bool:
    if gang.is_standalone:
        return True
    if state.service is None:
        state.actions.append(Create(SERVICES, build_service(gang.job, gang.port)))
        return False
    if state.service.deleting:
        return False
    if state.service.port != gang.port and not _get_current(state, gang):
        state.delete(SERVICES, state.service)
        return False
    return bool(state.service.cluster_ip)


def _ensure_endpoint_slice(state: ReconcileState, gang: Gang, scheduler: PodView) -> None:
    if state.endpoint is None and gang.host and (address := get_address(scheduler, gang.host)):
        body = build_endpoint_slice(gang.job, scheduler, address, gang.port)
        state.actions.append(Create(ENDPOINT_SLICES, body))


def _probe(state: ReconcileState, gang: Gang) -> None:
    """Create probes for an elastic job that runs with fewer workers than requested, and delete others."""
    missing = _list_missing(gang)
    running = state.status.get_condition(RUNNING)
    due = get_probe_time(gang.job, (running and running.last_transition_time) or state.now)
    if missing and state.now < due:
        state.actions.append(RequeueAt(due))
        missing = []
    wanted = {name_probe(gang.job, member): member for member in missing}
    for pod in state.probes:
        if pod.name not in wanted:
            state.delete(PODS, pod)
    names = wanted.keys() - {pod.name for pod in state.observed.pods}
    if names and not has_flavors(state):
        return
    for name in names:
        body = build_probe(
            gang.job, wanted[name], attempt=state.attempt, restarts=state.restarts, options=state.options
        )
        create_pod(state, body, wanted[name].replica_type)
