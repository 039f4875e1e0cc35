"""A gang's launch: the objects that the present attempt needs, in their order. Pure."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence

from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.names import RESTARTING, RUNNING, WORKER
from kfp_mindspore.msjob.restart import compute_restart_delay
from kfp_mindspore.msjob.topology import Member
from kfp_mindspore.msjob.waiting import NAME_TAKEN, NAME_TERMINATING, Waiting
from kfp_mindspore.operator.actions import Action, Create, RequeueAt
from kfp_mindspore.operator.elastic import build_probe, get_probe_time, list_missing, name_probe
from kfp_mindspore.operator.gang import Gang, get_current
from kfp_mindspore.operator.observed import ObjectView, PodView
from kfp_mindspore.operator.pods import build_pod
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

# No watch reports when objects without the job's label are deleted.
_RETRY_SECONDS = 15
_SPARE_RETRY_SECONDS = 60
SCALED_DOWN = "JobScaledDown"
# Restarts for gangs that have nothing to save: a member has failed, or they have not started.
_WITHOUT_SAVING = frozenset({"JobRestarting", SCALED_DOWN})


def launch(state: ReconcileState, gang: Gang) -> None:
    """Delete earlier attempts' objects, then create the present attempt's."""
    current = get_current(state, gang)
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
    _add_members(state, gang, [member for member in gang.members if member.name not in current])
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
            action: Action = build_assignment(
                spare,
                member,
                workers=gang.workers,
                host=gang.host,
                attempt=state.attempt,
                restarts=state.restarts,
            )
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
            action = Create(PODS, body)
        state.actions.append(action)


def _release_spares(state: ReconcileState, current: Mapping[str, PodView]) -> None:
    """Delete spares that a starting gang cannot use, or whose nodes its members need."""
    is_blocked = any(pod.is_unschedulable for pod in current.values())
    for pod in state.spares:
        if is_blocked or not is_usable(pod):
            state.delete(PODS, pod)


def _add_spares(state: ReconcileState, gang: Gang) -> None:
    """Create a running gang's spares, once it has had time to import MindSpore itself."""
    wanted = gang.job.warm_spares or 0
    is_whole = not list_missing(gang.job, gang.members, gang.host, gang.port)
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
        text = ", ".join(f"{kind} {item.name}" for kind, item in taken)
        state.waiting = Waiting(NAME_TAKEN, f"{text}: exists and does not belong to this job; delete or rename it")
        if all(item.owner for _, item in taken):
            # A job was deleted and created again: its pods end within their grace period.
            owner = "has another owner, such as an earlier job of this name that is being deleted"
            state.waiting = Waiting(NAME_TERMINATING, f"{text}: exists and {owner}")
        state.actions.append(RequeueAt(state.now + datetime.timedelta(seconds=_RETRY_SECONDS)))
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
    if group.minimum != get_min_members(gang.job, len(gang.members)) and not get_current(state, gang):
        state.delete(state.pod_groups, group)
        return False
    return bool(get_current(state, gang)) or is_admitted(group, state.options)


def _has_service(state: ReconcileState, gang: Gang) -> bool:
    if gang.is_standalone:
        return True
    if state.service is None:
        state.actions.append(Create(SERVICES, build_service(gang.job, gang.port)))
        return False
    if state.service.deleting:
        return False
    if state.service.port != gang.port and not get_current(state, gang):
        state.delete(SERVICES, state.service)
        return False
    return bool(state.service.cluster_ip)


def _ensure_endpoint_slice(state: ReconcileState, gang: Gang, scheduler: PodView) -> None:
    if state.endpoint is None and gang.host and (address := get_address(scheduler, gang.host)):
        body = build_endpoint_slice(gang.job, scheduler, address, gang.port)
        state.actions.append(Create(ENDPOINT_SLICES, body))


def _probe(state: ReconcileState, gang: Gang) -> None:
    """Create probes for an elastic job that runs with fewer workers than requested, and delete others."""
    missing = list_missing(gang.job, gang.members, gang.host, gang.port)
    running = state.status.get_condition(RUNNING)
    due = get_probe_time(gang.job, (running and running.last_transition_time) or state.now)
    if missing and state.now < due:
        state.actions.append(RequeueAt(due))
        missing = []
    wanted = {name_probe(gang.job, member): member for member in missing}
    for pod in state.probes:
        if pod.name not in wanted:
            state.delete(PODS, pod)
    for name in wanted.keys() - {pod.name for pod in state.observed.pods}:
        body = build_probe(
            gang.job, wanted[name], attempt=state.attempt, restarts=state.restarts, options=state.options
        )
        state.actions.append(Create(PODS, body))
