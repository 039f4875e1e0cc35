"""Decisions about an elastic job's worker count. Pure; used by all backends.

A worker is available when it runs or could be started. For a job that runs `current` workers and requests `requested`:

| available | gang incomplete | workers of the next attempt |
|---|---|---|
| ≥ requested | | requested: the gang grows, or was scaled down |
| > current | | available: the gang grows |
| = current | | current |
| < current, ≥ minReplicas | for graceSeconds | available: the gang shrinks |
| < current | shorter, or available < minReplicas | current: wait for the missing workers |

Each change restarts the gang from a checkpoint. The global batch stays the same, so learning rate and schedule do too.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from kfp_mindspore.msjob.api.names import DEFAULT_ELASTIC_GRACE_SECONDS, WORKER
from kfp_mindspore.settings import CHECKPOINT_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.msjob.api.spec import JobManifest


def get_requested_workers(job: JobManifest) -> int:
    """Return the worker count when all are available: `replicas` within the elastic policy's bounds."""
    policy = job.elastic_policy
    if policy is None:
        return job.workers
    return max(policy.min_replicas or 1, min(job.workers, policy.max_replicas or job.workers))


def get_minimum_workers(job: JobManifest) -> int:
    """Return the fewest workers that a job runs with: the requested count unless it is elastic."""
    requested = get_requested_workers(job)
    return requested if job.elastic_policy is None else min(job.elastic_policy.min_replicas or 1, requested)


def get_elastic_grace_seconds(job: JobManifest) -> float:
    """Return the seconds that a missing worker may take to return."""
    seconds = None if job.elastic_policy is None else job.elastic_policy.grace_seconds
    return float(DEFAULT_ELASTIC_GRACE_SECONDS if seconds is None else seconds)


def get_restart_limit(job: JobManifest) -> int:
    """Return the maximum number of counted restarts: `maxRestarts` for an elastic job, else `backoffLimit`."""
    if job.elastic_policy is not None and job.elastic_policy.max_restarts is not None:
        return job.elastic_policy.max_restarts
    return job.effective_run_policy.backoff_limit or 0


def explain_missing_checkpoints(job: JobManifest, inherited: Container[str] = ()) -> str:
    """Return a warning for an elastic job whose workers are given no checkpoint directory; empty for others.

    Args:
        job: A valid job.
        inherited: Variables that its processes have beside the template's.
    """
    container = job.ms_replica_specs[WORKER].container
    own = [item.get("name") for item in container.get("env") or []]
    if job.elastic_policy is None or container.get("envFrom"):
        return ""
    if CHECKPOINT_VARIABLE in own or CHECKPOINT_VARIABLE in inherited:
        return ""
    return (
        f"job {job.name} is elastic without {CHECKPOINT_VARIABLE}: unless its script has checkpoints of its own, the "
        "training starts anew whenever the number of workers changes"
    )


def decide_workers(job: JobManifest, *, current: int, available: int, missing_seconds: float = 0.0) -> int:
    """Decide how many workers the gang should have.

    Args:
        job: A valid job.
        current: The present attempt's worker count.
        available: Workers that run or could be started, at least 0.
        missing_seconds: Seconds since the gang has lacked a worker.

    Returns:
        The worker count; `current` for no change, also while a missing worker may return.
    """
    requested = get_requested_workers(job)
    if available >= requested:
        return requested
    if job.elastic_policy is None or available == current:
        return current
    if available > current:
        return max(available, get_minimum_workers(job))
    if available >= get_minimum_workers(job) and missing_seconds >= get_elastic_grace_seconds(job):
        return available
    return current
