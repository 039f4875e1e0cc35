"""Prometheus metrics for one process's models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

CREATED_VARIABLE = "PROMETHEUS_DISABLE_CREATED_SERIES"
PROTOCOLS = ("v1", "v2", "v2-binary", "grpc", "openai")
REASONS = ("invalid", "overload", "deadline", "cancelled", "not_ready", "unsupported", "denied", "error")
LOAD_RESULTS = ("ok", "failed")
# Label value for all models that are not served: client-supplied names would create series without bound.
UNKNOWN_MODEL = "(unknown)"

# Buckets from 100 µs to 10 s, each 2 or 2.5 times the previous one: the largest error of an estimated quantile.
SECONDS = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
ROWS = tuple(2**power for power in range(11))


class ServerMetrics:
    """This process's metrics.

    Args:
        registry: Default prometheus_client's own, which has process and Python metrics too.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        if CREATED_VARIABLE not in os.environ:
            # By default each counter has a second series with its creation time.
            disable_created_metrics()  # type: ignore[no-untyped-call]
        self._families = _Families(registry)
        self._models: set[str] = set()

    def for_model(self, name: str) -> ModelMetrics:
        """Return a model's metrics; the series start at 0.

        Args:
            name: A model name that is or was loaded, never one that only a client has sent.
        """
        self._models.add(_to_label(name))
        return ModelMetrics(self._families, _to_label(name))

    def forget_model(self, name: str) -> None:
        """Remove an unloaded model's series."""
        if (label := _to_label(name)) in self._models:
            self._models.remove(label)
            self._families.remove(label)

    def set_device(self, device: str) -> None:
        """Set the device type on which this process computes."""
        self._families.device.labels(device).set(1)

    def count_unknown(self, protocol: str, reason: str) -> None:
        """Count a request for a model that is not served, under one label value for all such models.

        Args:
            protocol: A value in `PROTOCOLS`.
            reason: A value in `REASONS`.
        """
        self._families.requests.labels(UNKNOWN_MODEL, protocol).inc()
        self._families.failures.labels(UNKNOWN_MODEL, reason).inc()

    def count_events(self, *, written: int = 0, lost: int = 0) -> None:
        """Count events of requests and responses that the log wrote or lost."""
        for result, count in (("written", written), ("lost", lost)):
            self._families.events.labels(result).inc(count)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return a scrape response's body and content type.

        Args:
            accept: The request's Accept header. OpenMetrics is used when the header names it, without q=0.
        """
        # prometheus_client 0.26's choose_encoder raises TypeError for `version=x` and ignores q=0.
        for part in accept.lower().split(","):
            kind, *parameters = (item.strip() for item in part.split(";"))
            if kind == "application/openmetrics-text" and "q=0" not in parameters:
                # Its default replaces the colon of vLLM's names.
                body: bytes = generate_openmetrics(self._registry, escaping=ALLOWUTF8)  # type: ignore[no-untyped-call]
                return body, CONTENT_TYPE_OPENMETRICS
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


class Totals(NamedTuple):
    """A model's totals.

    Args:
        rows: Rows that were computed.
        batches: The graph's executions.
        durations: Count and seconds for `success` and `fail` (requests), `queue` and `compute_infer`.
    """

    rows: float
    batches: float
    durations: dict[str, tuple[float, float]]


class ModelMetrics:
    """One model's series, with labels resolved once instead of per request. Made by `ServerMetrics.for_model`.

    Several model versions share the series.
    """

    def __init__(self, families: _Families, name: str) -> None:
        self._requests = {protocol: families.requests.labels(name, protocol) for protocol in PROTOCOLS}
        self._failures = {reason: families.failures.labels(name, reason) for reason in REASONS}
        self._loads = {result: families.loads.labels(name, result) for result in LOAD_RESULTS}
        self._latency = families.latency.labels(name)
        self._queue = families.queue.labels(name)
        self._rows = families.rows.labels(name)
        self._inference = families.inference.labels(name)
        self._warm_shapes = families.warm_shapes.labels(name)
        self._in_flight = families.in_flight.labels(name)
        self._model_bytes = families.model_bytes.labels(name)
        self._own_in_flight = 0
        self._unknown = families.unknown
        self._name = name

    def count_request(self, protocol: str) -> None:
        """Count a request, whatever the outcome.

        Args:
            protocol: A value in `PROTOCOLS`.
        """
        self._requests[protocol].inc()

    def count_failure(self, reason: str) -> None:
        """Count a request that was not answered with outputs.

        Args:
            reason: A value in `REASONS`.
        """
        self._failures[reason].inc()

    def count_unknown_categories(self, counts: Mapping[str, int]) -> None:
        """Count categories that the training data did not have and that were answered as none.

        Args:
            counts: Counts by the model's input.
        """
        for name, count in counts.items():
            self._unknown.labels(self._name, name).inc(count)

    def observe_latency(self, seconds: float) -> None:
        """Observe the time from a request's arrival to the response with outputs."""
        self._latency.observe(seconds)

    def observe_batch(self, rows: int, inference_seconds: float, queue_seconds: Sequence[float]) -> None:
        """Observe a computed batch.

        Args:
            rows: Rows without padding.
            inference_seconds: Graph execution time.
            queue_seconds: Queue time for each request in the batch.
        """
        self._rows.observe(rows)
        self._inference.observe(inference_seconds)
        for seconds in queue_seconds:
            self._queue.observe(seconds)

    def sum_up(self) -> Totals:
        """Return the totals; failures have no duration."""
        batches, rows = _read(self._rows)
        failed = sum(_read(counter)[0] for counter in self._failures.values())
        series = {"success": self._latency, "queue": self._queue, "compute_infer": self._inference}
        durations = {name: _read(histogram) for name, histogram in series.items()}
        return Totals(rows, batches, {**durations, "fail": (failed, 0.0)})

    def set_warm_shapes(self, count: int) -> None:
        """Set the number of compiled input shapes; of several versions, the last one loaded."""
        self._warm_shapes.set(count)

    def set_model_bytes(self, count: int) -> None:
        """Set the bundle's file size in bytes; of several versions, the last one loaded."""
        self._model_bytes.set(count)

    def set_in_flight(self, count: int) -> None:
        """Set how many requests are queued or computed; the series is the sum over all versions."""
        self._in_flight.inc(count - self._own_in_flight)
        self._own_in_flight = count

    def count_load(self, result: str) -> None:
        """Count a load or reload.

        Args:
            result: A value in `LOAD_RESULTS`.
        """
        self._loads[result].inc()


class _Families:
    """The metrics without a model name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def count(name: str, text: str, label: str) -> Counter:
            return Counter(f"mindsporeserver_{name}", text, ["model_name", label], registry=registry)

        def observe(name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(f"mindsporeserver_{name}", text, ["model_name"], buckets=buckets, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"mindsporeserver_{name}", text, ["model_name"], registry=registry)

        self.requests = count("requests_total", "Requests.", "protocol")
        self.failures = count("request_failures_total", "Requests that were not answered with outputs.", "reason")
        self.loads = count("loads_total", "Loads and reloads of the model.", "result")
        self.unknown = count("unknown_categories_total", "Categories that the training data did not have.", "input")
        self.latency = observe("request_seconds", "Time from a request's arrival to its response with outputs.")
        self.queue = observe("queue_seconds", "Time of a request in the queue.")
        self.rows = observe("batch_rows", "Rows computed together.", ROWS)
        self.inference = observe("inference_seconds", "Time of the graph for a batch.")
        self.warm_shapes = gauge("warm_shapes", "Compiled input shapes.")
        self.in_flight = gauge("in_flight", "Requests that are queued or computed.")
        self.device = Gauge(
            "mindsporeserver_device_info", "1 for the device type that the process uses.", ["device"], registry=registry
        )
        # Without series until there is a log.
        self.events = Counter(
            "mindsporeserver_log_events_total", "Events of the log of requests.", ["result"], registry=registry
        )
        self.model_bytes = gauge("model_bytes", "Size of the model bundle's files.")

    def remove(self, name: str) -> None:
        for counter, values in ((self.requests, PROTOCOLS), (self.failures, REASONS), (self.loads, LOAD_RESULTS)):
            for value in values:
                counter.remove(name, value)
        self.unknown.remove_by_labels({"model_name": name})
        for family in (self.latency, self.queue, self.rows, self.inference):
            family.remove(name)
        for gauge in (self.warm_shapes, self.in_flight, self.model_bytes):
            gauge.remove(name)


def _read(metric: Counter | Histogram) -> tuple[float, float]:
    """Return a histogram's count and sum, or a counter's count and 0."""
    samples = {sample.name: sample.value for family in metric.collect() for sample in family.samples}
    count, total = (
        next((value for name, value in samples.items() if name.endswith(ending)), 0.0)
        for ending in (("_count", "_total"), "_sum")
    )
    return count, total


def _to_label(name: str) -> str:
    # A directory name may hold bytes that are not UTF-8, and no scrape could be encoded.
    return name.encode("utf-8", "replace").decode()
