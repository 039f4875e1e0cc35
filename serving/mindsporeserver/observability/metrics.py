"""What Prometheus scrapes: counters, histograms and gauges of each model, of one process or of all workers.

With PROMETHEUS_MULTIPROC_DIR set before prometheus_client is imported, each process keeps its values in files of that
directory, and whichever process is scraped answers for all of them.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

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
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from kfp_mindspore.errors import UserError

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
CREATED_VARIABLE = "PROMETHEUS_DISABLE_CREATED_SERIES"
PROTOCOLS = ("v1", "v2", "v2-binary", "grpc")
REASONS = ("invalid", "overload", "deadline", "cancelled", "not_ready", "unsupported", "error")
LOAD_RESULTS = ("ok", "failed")

# 100 µs to 10 s, in steps of 2 or 2.5: what a quantile is off by at most.
SECONDS = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
ROWS = tuple(2**power for power in range(11))

# A process' files begin with 64 KiB each, and double.
_BYTES_OF_NEW_FILES = 5 * 64 * 1024


class _BatchHistogram(Histogram):
    """A histogram that takes the observations of a whole batch at the price of a few."""

    def observe_all(self, values: Sequence[float]) -> None:
        """Observe each value; the same as `observe` one by one."""
        if len(values) == 1:
            self.observe(values[0])
            return
        counts: dict[int, int] = {}
        bounds = self._upper_bounds
        for value in values:
            index = bisect_left(bounds, value)
            counts[index] = counts.get(index, 0) + 1
        self._sum.inc(sum(values))
        for index, count in counts.items():
            self._buckets[index].inc(count)


class ModelMetrics:
    """One model's series, bound once, so that a request looks up no label. Made by `Metrics.for_model`.

    Versions of a model, and one that is replaced while the next is there already, have each their own of these.
    """

    def __init__(self, families: _Families, name: str) -> None:
        self._requests = {protocol: families.requests.labels(name, protocol) for protocol in PROTOCOLS}
        self._failures = {reason: families.failures.labels(name, reason) for reason in REASONS}
        self._loads = {result: families.loads.labels(name, result) for result in LOAD_RESULTS}
        self._queue = families.queue.labels(name)
        self._rows = families.rows.labels(name)
        self._inference = families.inference.labels(name)
        self._warm_shapes = families.warm_shapes.labels(name)
        self._in_flight = families.in_flight.labels(name)
        self._model_bytes = families.model_bytes.labels(name)
        self._flying = 0

    def count_request(self, protocol: str) -> None:
        """Count a request that named this model, whatever becomes of it.

        Args:
            protocol: v1, v2, v2-binary or grpc.
        """
        self._requests[protocol].inc()

    def count_failure(self, reason: str) -> None:
        """Count a request that was not answered with outputs.

        Args:
            reason: invalid, overload, deadline, cancelled, not_ready, unsupported or error.
        """
        self._failures[reason].inc()

    def observe_batch(self, rows: int, inference_seconds: float, queue_seconds: Sequence[float]) -> None:
        """Observe a batch that was computed.

        Args:
            rows: Rows that clients sent, without padding.
            inference_seconds: How long the graph took.
            queue_seconds: How long each of the batch's requests had waited.
        """
        self._rows.observe(rows)
        self._inference.observe(inference_seconds)
        if queue_seconds:
            self._queue.observe_all(queue_seconds)

    def set_warm_shapes(self, n: int) -> None:
        """Set how many shapes of inputs are compiled; with several versions, the last one to say so counts."""
        self._warm_shapes.set(n)

    def set_model_bytes(self, n: int) -> None:
        """Set the size of the bundle's files in bytes; with several versions, the last one to say so counts."""
        self._model_bytes.set(n)

    def set_in_flight(self, n: int) -> None:
        """Set how many requests are queued or computed now; the metric is the sum over all versions."""
        self._in_flight.inc(n - self._flying)
        self._flying = n

    def count_load(self, result: str) -> None:
        """Count a load or reload.

        Args:
            result: ok or failed.
        """
        self._loads[result].inc()


class _Families:
    """The metrics before a model's name is filled in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name = ["model_name"]
        self.requests = Counter(
            "mindsporeserver_requests_total", "Requests that named the model.", [*name, "protocol"], registry=registry
        )
        self.failures = Counter(
            "mindsporeserver_request_failures_total",
            "Requests that were not answered with outputs.",
            [*name, "reason"],
            registry=registry,
        )
        self.loads = Counter(
            "mindsporeserver_loads_total", "Loads and reloads of the model.", [*name, "result"], registry=registry
        )
        self.queue = _BatchHistogram(
            "mindsporeserver_queue_seconds",
            "Time a request waited for the graph.",
            name,
            buckets=SECONDS,
            registry=registry,
        )
        self.rows = Histogram(
            "mindsporeserver_batch_rows", "Rows computed together.", name, buckets=ROWS, registry=registry
        )
        self.inference = Histogram(
            "mindsporeserver_inference_seconds",
            "Time the graph took for a batch.",
            name,
            buckets=SECONDS,
            registry=registry,
        )
        # livemin: a shape is warm when every worker has compiled it; one that is cold would make a client wait.
        self.warm_shapes = Gauge(
            "mindsporeserver_warm_shapes",
            "Shapes of inputs that are compiled (in every worker).",
            name,
            multiprocess_mode="livemin",
            registry=registry,
        )
        # livesum: each worker has its own; a dead one's are gone with it.
        self.in_flight = Gauge(
            "mindsporeserver_in_flight",
            "Requests queued or computed now.",
            name,
            multiprocess_mode="livesum",
            registry=registry,
        )
        # livemax: all workers serve the same files, and the size of a model does not grow with workers.
        self.model_bytes = Gauge(
            "mindsporeserver_model_bytes",
            "Size of the model bundle's files.",
            name,
            multiprocess_mode="livemax",
            registry=registry,
        )

    def remove(self, name: str) -> None:
        for family in (self.queue, self.rows, self.inference, self.warm_shapes, self.in_flight, self.model_bytes):
            family.remove(name)
        for counter, values in ((self.requests, PROTOCOLS), (self.failures, REASONS), (self.loads, LOAD_RESULTS)):
            for value in values:
                counter.remove(name, value)


class Metrics:
    """The metrics of this process; make one, before requests are served.

    Args:
        registry: Where they are registered; default prometheus_client's own, which holds kserve's too.

    Raises:
        UserError: PROMETHEUS_MULTIPROC_DIR is set and is no directory that can be written.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        directory = os.environ.get(DIRECTORY_VARIABLE)
        self._directory = Path(directory) if directory else None
        if self._directory is not None:
            _check_directory(self._directory)
        self._source: Collector = registry
        if self._directory is not None:
            self._source = _AllProcesses(self._directory, lambda: self._hidden)
        if CREATED_VARIABLE not in os.environ:
            # A time for each series beside it, which files that processes share do not hold anyway.
            disable_created_metrics()  # type: ignore[no-untyped-call]
        self._families = _Families(registry)
        self._served: set[str] = set()
        self._hidden: frozenset[str] = frozenset()

    def for_model(self, name: str) -> ModelMetrics:
        """Return the series of a model; they start at 0.

        Args:
            name: A name of the model repository, never text of a client: each one is kept for ever by Prometheus.

        Raises:
            UserError: The disk that holds PROMETHEUS_MULTIPROC_DIR is full.
        """
        name = _make_label(name)
        if self._directory is None or name in self._served:
            model = ModelMetrics(self._families, name)
        else:
            _check_space(self._directory)
            model = ModelMetrics(self._families, name)
            _reserve_blocks(self._directory)
        self._served.add(name)
        self._hidden -= {name}
        return model

    def forget_model(self, name: str) -> None:
        """Show a model's series no more, after it was unloaded.

        In one process they are removed and start at 0 when the model comes back. Files that processes share can lose
        nothing: there the series are hidden, and counters go on from where they were.
        """
        name = _make_label(name)
        if name not in self._served:
            return
        self._served.discard(name)
        if self._directory is None:
            self._families.remove(name)
            return
        self._hidden |= {name}
        # A worker that does not know yet may be scraped. What is in flight comes down by itself.
        self._families.warm_shapes.labels(name).set(0)
        self._families.model_bytes.labels(name).set(0)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and the content type of an answer to a scrape.

        Args:
            accept: The request's Accept header: OpenMetrics when it is named there, else Prometheus' text.
        """
        # prometheus_client's choose_encoder raises TypeError for a version that is no number.
        if _accepts_openmetrics(accept):
            return generate_openmetrics(self._source), CONTENT_TYPE_OPENMETRICS  # type: ignore[no-untyped-call]
        return generate_latest(self._source), CONTENT_TYPE_PLAIN_0_0_4


class _AllProcesses(Collector):
    """Sums what all processes wrote to the directory.

    prometheus_client's own reader fails on a file that has no content yet: for ever, when its process was killed then.
    """

    def __init__(self, directory: Path, find_hidden: Callable[[], frozenset[str]]) -> None:
        self._directory = directory
        self._find_hidden = find_hidden

    def collect(self) -> Iterator[Metric]:
        hidden = self._find_hidden()
        for metric in self._merge():
            metric.samples = [sample for sample in metric.samples if sample.labels.get("model_name") not in hidden]
            yield metric

    def _merge(self) -> Iterable[Metric]:
        files = [str(file) for file in self._directory.glob("*.db") if _measure(file)]
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise UserError(f"{DIRECTORY_VARIABLE}: {directory} is no directory", hint="Create it, empty, for each start.")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(
            f"{DIRECTORY_VARIABLE}: {directory} cannot be written", hint="Choose one that can, such as /tmp."
        )


def _own_files(directory: Path) -> list[Path]:
    return list(directory.glob(f"*_{os.getpid()}.db"))


def _check_space(directory: Path) -> None:
    """Refuse what would end the process by SIGBUS: writing to a mapped file whose blocks the disk does not have."""
    status = os.statvfs(directory)
    free, needed = status.f_bavail * status.f_frsize, _BYTES_OF_NEW_FILES + sum(map(_measure, _own_files(directory)))
    if free < needed:
        raise UserError(
            f"{DIRECTORY_VARIABLE}: {directory} needs {needed} free bytes for another model's metrics, has {free}",
            hint="Free some space or choose another directory.",
        )


def _reserve_blocks(directory: Path) -> None:
    """Give the sparse files their blocks now, while the disk has them."""
    for file in _own_files(directory):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, _measure(file))
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                    continue  # a file system that reserves nothing
                raise UserError(
                    f"{DIRECTORY_VARIABLE}: {file} cannot be written: {error.strerror}",
                    hint="Free some space or choose another directory.",
                ) from error


def _measure(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _make_label(name: str) -> str:
    # The name of a directory may hold bytes that are no UTF-8, which no scrape could be answered with.
    return name.encode("utf-8", "replace").decode()


def _accepts_openmetrics(accept: str) -> bool:
    for part in accept.split(","):
        kind, *parameters = (item.strip() for item in part.lower().split(";"))
        if kind == "application/openmetrics-text":
            return "q=0" not in parameters
    return False
