"""The status subresource: kubeflow-training's fields, and the counters that survive an operator restart."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_mindspore.msjob.api.manifest import deserialize
from kfp_mindspore.msjob.api.names import JOB_LABEL, REPLICA_TYPE_LABEL, RUNNING, WORKER
from kfp_mindspore.msjob.api.status import DetailedStatus, Failure, JobStatus, ReplicaStatus
from kfp_mindspore.msjob.decisions.elastic import get_requested_workers
from kfp_mindspore.msjob.decisions.restart import MemberTermination, describe_termination
from kfp_mindspore.msjob.decisions.topology import Member
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import PodView


def read_status(document: Mapping[str, Any] | None) -> DetailedStatus:
    """Parse a status; an invalid one counts as empty: attempt and restarts are then read from the pods."""
    try:
        return DetailedStatus(**deserialize(DetailedStatus, document or {}))
    except (AttributeError, TypeError, ValueError):
        return DetailedStatus()


def write_status(status: DetailedStatus) -> dict[str, Any]:
    """Return the JSON form."""
    status.replica_statuses = status.replica_statuses or {}
    return status.to_dict()


def set_condition(
    status: JobStatus, condition: str, reason: str, message: str, time: datetime.datetime, *, holds: bool = True
) -> bool:
    """Set a condition unless it is already set with the same reason and message.

    Returns:
        Whether anything changed.
    """
    found = status.get_condition(condition)
    wanted = ("True" if holds else "False", reason, message)
    if found is not None and (found.status, found.reason, found.message) == wanted:
        return False
    status.set_condition(condition, reason, message, status=holds, time=time)
    return True


def count_replicas(status: DetailedStatus, job: MSJob, members: Iterable[Member], pods: Mapping[str, PodView]) -> None:
    """Count the running and terminated members.

    Args:
        status: The status to change.
        job: The job.
        members: The job's members.
        pods: The present attempt's pods by name.
    """
    counts: dict[str, ReplicaStatus] = {}
    for member in members:
        selector = f"{JOB_LABEL}={job.name},{REPLICA_TYPE_LABEL}={member.replica_type.lower()}"
        count = counts.setdefault(member.replica_type, ReplicaStatus(0, 0, 0, selector))
        pod = pods.get(member.name)
        if pod is None:
            continue
        if pod.exit_code is not None:
            if pod.exit_code == 0:
                count.succeeded = (count.succeeded or 0) + 1
            else:
                count.failed = (count.failed or 0) + 1
        elif pod.phase == RUNNING:
            count.active = (count.active or 0) + 1
    status.replica_statuses = counts
    workers = counts[WORKER]
    status.workers = f"{(workers.active or 0) + (workers.succeeded or 0)}/{get_requested_workers(job)}"


def finish_replica_counts(status: DetailedStatus, *, succeeded: bool) -> None:
    """Set a finished job's active counts to 0; for a successful job they count as succeeded, as in kubeflow."""
    for count in (status.replica_statuses or {}).values():
        if succeeded:
            count.succeeded = (count.succeeded or 0) + (count.active or 0)
        count.active = 0


def describe_failure(ending: MemberTermination, log: tuple[str, ...], attempt: int) -> Failure:
    """Return a member's failure for the status."""
    return Failure(ending.name, ending.exit_code, ending.reason, describe_termination(ending), list(log), attempt)
