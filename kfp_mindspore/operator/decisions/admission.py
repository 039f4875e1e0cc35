"""What a job with a queue asks of Kueue, and what the queue's admission means for its pods. Pure."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.kueue import RESOURCE_FLAVORS, WORKLOADS
from kfp_mindspore.msjob.api.names import FAILED
from kfp_mindspore.msjob.api.waiting import Waiting
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.actions import Create, PatchStatus
from kfp_mindspore.operator.decisions.kueue import (
    build_status_patch,
    build_workload,
    explain_unsupported,
    get_priority_class,
    is_outdated,
    list_flavors,
    place_pod,
)
from kfp_mindspore.operator.decisions.reconcile_state import ReconcileState


def enqueue(state: ReconcileState, job: MSJob) -> None:
    """Create the Workload, or delete one that is no longer the job's."""
    found = state.observed.workload
    if unsupported := explain_unsupported(job):
        state.finish(FAILED, "InvalidSpec", f"MSJob {state.name}: {unsupported}")
    elif found is not None and state.workload is None:
        state.report_taken([("Workload", found)])
    elif state.workload is not None:
        if is_outdated(state.workload, job):
            state.delete(WORKLOADS, state.workload)
    else:
        reference = get_priority_class(job)
        value = state.read(*reference) if reference else None
        if reference is None or value is not None:
            priority = None if value is None else int(value.get("value") or 0)
            state.actions.append(Create(WORKLOADS, build_workload(job, priority, state.options)))
            if refusal := state.observed.refusal:
                state.waiting = Waiting(refusal.reason, refusal.message)


def report_to_queue(state: ReconcileState) -> None:
    """Report to Kueue that the job runs, has ended, or has released an evicted Workload's quota."""
    workload = state.workload
    if workload is None or not state.options.kueue:
        return
    if patch := build_status_patch(workload, state.status, has_pods=bool(state.pods), now=state.now):
        state.actions.append(PatchStatus(WORKLOADS, workload.name, workload.uid, workload.version, patch))


def has_flavors(state: ReconcileState) -> bool:
    """Return whether the flavors that new pods need are known."""
    if state.workload is None or not state.queue or not state.options.kueue:
        return True
    found = [state.read(RESOURCE_FLAVORS, name) for name in list_flavors(state.workload)]
    return None not in found


def create_pod(state: ReconcileState, body: dict[str, Any], replica_type: str) -> None:
    """Create a pod; a queue's flavors and admission checks choose its nodes."""
    if state.workload is not None and state.queue and state.options.kueue:
        conflict = place_pod(body, state.workload, replica_type.lower(), state.observed.references)
        if conflict:
            if not state.status.is_finished:
                state.finish(FAILED, "PodsRefused", f"MSJob {state.name}: {conflict}")
            return
    state.actions.append(Create(PODS, body))
