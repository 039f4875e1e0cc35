"""Dynamic batching: the requests that queue while the graph runs are the next batch.

The event loop queues requests and the inference executor's thread dequeues them; counters and futures are changed in
the event loop only. A batch is delayed, by `Limits.max_delay_seconds` at most, only while fewer requests are queued
than were recently in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import ValidationError
from mindsporeserver.errors import DeadlineExceededError, InvalidRequestError, OverloadedError
from mindsporeserver.models.batch_computation import compute_batch
from mindsporeserver.models.inference_executor import InferenceExecutor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.mindir.graph.execution import Graph, RowShapes
    from mindsporeserver.observability.metrics import ModelMetrics

    Arrays = Mapping[str, NDArray[Any]]

# Weight of the latest batch in the moving average over requests in flight.
_CONCURRENCY_EMA = 0.5
_MAX_VALID = 1024


@dataclass(frozen=True)
class Limits:
    """Batcher limits.

    Args:
        max_queue: Rows that are accepted and not yet answered; further requests are refused.
        max_delay_seconds: How long a batch is delayed at most to fill it; 0 disables the delay.
    """

    max_queue: int = 1024
    max_delay_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Ticket:
    """A queued request.

    Args:
        inputs: Validated arrays.
        row_shapes: `Graph.get_row_shapes` result.
        rows: Row count; 1 for a model without a batch.
        deadline: `time.monotonic()` after which the request is refused, or None.
        future: Gets the outputs; cancelled when the client has disconnected.
        arrived: `time.monotonic()` when it was queued.
        queued_seconds: How long it was queued.
        computed_seconds: How long the batch took.
        unknown: Unknown categories by input, which were answered as none.
    """

    inputs: Arrays
    row_shapes: RowShapes
    rows: int
    deadline: float | None
    future: asyncio.Future[Any]
    arrived: float = field(default_factory=time.monotonic)
    queued_seconds: float = 0.0
    computed_seconds: float = 0.0
    unknown: Mapping[str, int] = field(default_factory=dict)
    is_dequeued: bool = False


class Batcher:
    """One graph's queue.

    Args:
        graph: Loaded and warm.
        executor: The process' inference executor.
        limits: See `Limits`.
        metrics: The model's metrics.
    """

    def __init__(self, graph: Graph, executor: InferenceExecutor, limits: Limits, metrics: ModelMetrics) -> None:
        self.graph = graph
        self.rows = 0
        self.requests = 0
        self._executor = executor
        self._limits = limits
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop
        self._queue: deque[Ticket] = deque()
        self._is_submitted = False
        self._is_scheduling = False
        self._expected_concurrency = 1.0
        self._filled = threading.Event()
        self._wanted = 0
        # Names, dtypes and shapes that were validated: validation takes 7 µs, as long as parsing a small request.
        self._valid: dict[tuple[Any, ...], tuple[RowShapes, int]] = {}

    def admit(self) -> None:
        """Refuse a request before the body is read when not even one row is left in the queue.

        Raises:
            OverloadedError: The queue is full.
        """
        if self.rows >= self._limits.max_queue:
            raise OverloadedError(self.rows, self._limits.max_queue)

    def submit(self, inputs: Arrays, *, deadline: float | None = None) -> Ticket:
        """Queue a request; called in the event loop.

        A request whose future is cancelled no longer counts as queued, and is not computed unless that has begun.

        Args:
            inputs: One array per input; not modified until the future is done.
            deadline: `time.monotonic()` after which the request is refused.

        Raises:
            InvalidRequestError: The inputs do not fit the signature or their ranges, or have more rows than the queue.
            OverloadedError: The queue is full.
        """
        limit = self._limits.max_queue
        try:
            row_shapes, rows = self._validate(inputs)
        except ValidationError as error:
            raise InvalidRequestError(error.message) from None
        if rows > limit:
            raise InvalidRequestError(f"a request may have at most {limit} rows, got {rows}", status=413)
        if self.rows + rows > limit:
            raise OverloadedError(self.rows, limit)
        self._loop = asyncio.get_running_loop()
        ticket = Ticket(inputs, row_shapes, rows, deadline, self._loop.create_future())
        ticket.future.add_done_callback(lambda _: self._release(ticket))
        self.rows += rows
        self.requests += 1
        self._queue.append(ticket)
        if not self._is_scheduling:
            # Scheduled after all requests in this event loop iteration, so that they share a batch.
            self._is_scheduling = True
            self._loop.call_soon(self._schedule)
        if self._wanted and len(self._queue) >= self._wanted:
            self._filled.set()
        return ticket

    def expire(self) -> None:
        """Refuse queued requests whose deadline has passed; called in the event loop, also while the graph is busy."""
        now = time.monotonic()
        for ticket in tuple(self._queue):
            if ticket.deadline is not None and now > ticket.deadline and not ticket.future.done():
                ticket.future.set_exception(DeadlineExceededError())

    def _validate(self, inputs: Arrays) -> tuple[RowShapes, int]:
        """Return valid inputs' row shapes and row count."""
        kind = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        valid = self._valid.get(kind)
        if valid is None:
            self.graph.validate(inputs)
            rows = len(next(iter(inputs.values()))) if self.graph.batch else 1
            valid = self.graph.get_row_shapes(inputs), rows
            if len(self._valid) < _MAX_VALID:
                self._valid[kind] = valid
        self.graph.check_ranges(inputs)
        return valid

    def _release(self, ticket: Ticket) -> None:
        self.rows -= ticket.rows
        self.requests -= 1
        self._metrics.set_in_flight(self.requests)
        if not ticket.is_dequeued:
            with contextlib.suppress(ValueError):  # dequeued in the meantime
                self._queue.remove(ticket)

    def _schedule(self) -> None:
        self._is_scheduling = False
        self._metrics.set_in_flight(self.requests)
        self._submit_batch()

    def _submit_batch(self) -> None:
        if self._queue and not self._is_submitted:
            self._is_submitted = True
            self._executor.put(self._run_batch)

    # The methods below run in the inference executor's thread, except `_deliver`.

    def _run_batch(self) -> None:
        self._delay_batch()
        batch, expired = self._dequeue_batch()
        results: list[tuple[Ticket, Any]] = [(ticket, DeadlineExceededError()) for ticket in expired]
        seconds = 0.0
        if batch:
            start = time.monotonic()
            computed = compute_batch(self.graph, [ticket.inputs for ticket in batch], batch[0].row_shapes)
            results += zip(batch, computed, strict=True)
            seconds = time.monotonic() - start
            for ticket in batch:
                ticket.queued_seconds = start - ticket.arrived
                ticket.computed_seconds = seconds
        if results:
            try:
                self._loop.call_soon_threadsafe(self._deliver, results, batch, seconds)
            except RuntimeError:  # the event loop is closed
                return
        # In this order: `_schedule` submits a batch for requests that are queued once the flag is reset.
        self._is_submitted = False
        self._submit_batch()

    def _delay_batch(self) -> None:
        queue = self._queue.copy()
        if not queue or self._limits.max_delay_seconds <= 0 or self._executor.is_busy():
            return
        capacity = math.ceil(self.graph.max_batch * len(queue) / sum(ticket.rows for ticket in queue))
        wanted = min(int(self._expected_concurrency + 0.5), capacity)
        seconds = self._limits.max_delay_seconds - (time.monotonic() - queue[0].arrived)
        if len(queue) >= wanted or seconds <= 0:
            return
        self._filled.clear()
        self._wanted = wanted
        if len(self._queue) < wanted:
            self._filled.wait(seconds)
        self._wanted = 0

    def _dequeue_batch(self) -> tuple[list[Ticket], list[Ticket]]:
        """Dequeue the oldest request and those that fit into one batch with it, in order.

        Returns:
            The batch, and dequeued requests whose deadline has passed.
        """
        batch: list[Ticket] = []
        expired: list[Ticket] = []
        others: list[Ticket] = []
        capacity = self.graph.max_batch
        now = time.monotonic()
        while self._queue and not (batch and (capacity <= 0 or not self.graph.batch)):
            try:
                ticket = self._queue.popleft()
            except IndexError:  # cancelled and removed in the meantime
                break
            if ticket.future.done():
                continue
            if ticket.deadline is not None and now > ticket.deadline:
                expired.append(ticket)
            elif batch and ticket.rows > capacity:
                others.append(ticket)
                break
            elif batch and ticket.row_shapes != batch[0].row_shapes:
                others.append(ticket)
            else:
                ticket.is_dequeued = True
                batch.append(ticket)
                capacity -= ticket.rows
        self._queue.extendleft(reversed(others))
        return batch, expired

    def _deliver(self, results: Sequence[tuple[Ticket, Any]], batch: Sequence[Ticket], seconds: float) -> None:
        self._expected_concurrency += (self.requests - self._expected_concurrency) * _CONCURRENCY_EMA
        for ticket, result in results:
            if ticket.future.done():  # cancelled or expired
                continue
            if isinstance(result, Exception):
                ticket.future.set_exception(result)
            else:
                ticket.future.set_result(result)
        if batch:
            queued = [ticket.queued_seconds for ticket in batch]
            self._metrics.observe_batch(sum(ticket.rows for ticket in batch), seconds, queued)
