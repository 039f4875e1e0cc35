"""The operator's Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kfp_mindspore.msjob.api.names import CREATED, FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

_STATES = ("Pending", CREATED, RUNNING, RESTARTING, SUSPENDED, SUCCEEDED, FAILED)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class OperatorMetrics:
    """The operator's metrics, in their own registry."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector
        from prometheus_client import Counter as PrometheusCounter

        self.registry: CollectorRegistry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def count(name: str, text: str, labels: Iterable[str] = ()) -> PrometheusCounter:
            return PrometheusCounter(name, text, tuple(labels), registry=self.registry)

        self.reconcile_seconds = Histogram(
            "msjob_reconcile_seconds", "Time to reconcile one job.", buckets=_BUCKETS, registry=self.registry
        )
        self.queue_seconds = Histogram(
            "msjob_queue_seconds", "Time that a job is queued.", buckets=_BUCKETS, registry=self.registry
        )
        self.reconcile_errors = count("msjob_reconcile_errors_total", "Failed reconciliations, which are retried.")
        self.restarts = count("msjob_restarts_total", "Gang restarts.", ["reason"])
        self.hangs = count("msjob_hangs_total", "Attempts that a worker without progress ended.")
        self.finished = count("msjob_finished_total", "Finished jobs.", ["state"])
        # Prometheus sees no increase in a series that begins with 1.
        self.restarts.labels("JobRestarting")
        for state in (SUCCEEDED, FAILED):
            self.finished.labels(state)
        self.requests = count(
            "msjob_api_requests_total", "Requests to the API server; code 0: no response.", ["verb", "code"]
        )
        self.lost_events = count("msjob_lost_events_total", "Kubernetes events that could not be written.")
        self.leading = Gauge("msjob_leading", "1 while this process is the leader, else 0.", registry=self.registry)
        self._jobs = Gauge("msjob_jobs", "Jobs by state.", ["state"], registry=self.registry)
        self._queue = Gauge("msjob_queue_depth", "Queued jobs.", registry=self.registry)
        self._timers = Gauge("msjob_timers", "Jobs with a timer.", registry=self.registry)

    def count_request(self, verb: str, code: int) -> None:
        """Count one request to the API server."""
        self.requests.labels(verb, str(code)).inc()

    def track_states(self, states: Counter[str]) -> None:
        """Report the job count by state from a store."""
        for state in _STATES:
            self._jobs.labels(state).set_function(lambda state=state: states[state])  # type: ignore[misc]

    def track_queue(self, depth: Callable[[], int], timers: Callable[[], int]) -> None:
        """Report the queue's length and timers."""
        self._queue.set_function(depth)
        self._timers.set_function(timers)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
