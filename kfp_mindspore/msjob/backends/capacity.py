"""This machine's capacity for an elastic job's workers.

A worker that returns after a restart runs for graceSeconds. One that fails again within graceSeconds, or whose process
cannot be started, is missing: the job goes on without it. It is tried again after ten times graceSeconds, then after
twice that time, and so on, and when the worker count in the spec changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kfp_mindspore.msjob.decisions.elastic import get_elastic_grace_seconds, get_minimum_workers, get_requested_workers
from kfp_mindspore.msjob.types import MSJob

_GROWTH_FACTOR = 10.0


@dataclass
class Capacity:
    """One job's missing workers. Times are time.monotonic().

    Attributes:
        missing: Missing worker count.
    """

    missing: int = 0
    _requested: int = 0
    _start: float = 0.0
    _on_trial: bool = False
    _losses: int = 0
    _retry_at: float = float("inf")

    def record_start(self, now: float) -> None:
        """Record an attempt's start."""
        self._start = now

    def record_failure(self, job: MSJob, now: float) -> None:
        """Record that an attempt has failed: a worker is missing if it had only just returned."""
        if self._on_trial and now - self._start < get_elastic_grace_seconds(job):
            self.record_missing(job, self.get_available(job, now) - 1, now)
        else:
            self._on_trial = True

    def record_missing(self, job: MSJob, available: int, now: float) -> None:
        """Record that only some workers are available; fewer than minReplicas are tried again with all."""
        if job.elastic_policy is None or available < get_minimum_workers(job):
            return
        self.missing = get_requested_workers(job) - available
        self._on_trial = False
        self._retry_at = now + get_elastic_grace_seconds(job) * _GROWTH_FACTOR * 2**self._losses
        self._losses += 1

    def get_available(self, job: MSJob, now: float) -> int:
        """Return how many workers run or may be started."""
        requested = get_requested_workers(job)
        if requested != self._requested or now >= self._retry_at:
            self._on_trial = self.missing > 0
            self._requested, self.missing, self._retry_at = requested, 0, float("inf")
        return requested - self.missing
