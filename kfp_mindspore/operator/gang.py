"""One attempt's gang: a job's members with the addresses that they need. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kfp_mindspore.msjob.elastic import get_requested_workers
from kfp_mindspore.msjob.topology import Member, get_scheduler_port, is_standalone
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.observed import PodView
from kfp_mindspore.operator.pods import list_members
from kfp_mindspore.operator.reconcile_state import ReconcileState


@dataclass(frozen=True)
class Gang:
    """The present attempt's members.

    Attributes:
        job: The job, whose spec is valid.
        workers: Worker count.
        port: The scheduler's port.
        is_standalone: Whether the gang is one plain process.
        host: The Service's cluster IP; empty before, and for a standalone job.
        members: Its members.
    """

    job: MSJob
    workers: int
    port: int
    is_standalone: bool
    host: str
    members: tuple[Member, ...]


def form_gang(state: ReconcileState, job: MSJob, workers: int) -> Gang:
    """Return the gang with a given worker count, and record the count in the status."""
    state.status.target_workers = None if workers == get_requested_workers(job) else workers
    standalone = is_standalone(job, workers)
    host = state.service.cluster_ip if state.service and not standalone else ""
    port = get_scheduler_port(job)
    return Gang(job, workers, port, standalone, host, list_members(job, host, port, workers))


def get_current(state: ReconcileState, gang: Gang) -> Mapping[str, PodView]:
    """Return the present attempt's pods by member."""
    names = {member.name for member in gang.members}
    return {pod.member: pod for pod in state.pods if pod.attempt == state.attempt and pod.member in names}
