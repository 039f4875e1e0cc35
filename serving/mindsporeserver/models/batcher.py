"""Batches: what queues while the graph runs is the next batch.

Requests are put by the event loop and taken by the graph thread; everything that both could change is changed in the
event loop only. A batch of one waits for nobody: with `max_delay_seconds` a batch waits only while fewer requests are
queued than were lately in flight at once.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.mindir.graph import KERNEL_ERRORS
from mindsporeserver.errors import (
    ClientGoneError,
    DeadlineExceededError,
    GraphError,
    InvalidRequestError,
    OverloadedError,
)
from mindsporeserver.models.graphs import GraphThread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.mindir.graph import Graph, RowShapes
    from mindsporeserver.observability.metrics import ModelMetrics

    Arrays = Mapping[str, NDArray[Any]]

# How many combinations of names, dtypes and shapes are remembered as right.
_KNOWN = 1024
# How fast the number of requests that are expected at once follows what is seen: half of the change in a batch.
_FOLLOWS = 0.5
# How much of what was known of a size's duration stays when it is measured again.
_REMEMBERS = 0.8


@dataclass(frozen=True)
class Limits:
    """What a batcher holds at most.

    Args:
        max_queue: Rows that are accepted and not yet answered; over it requests are refused.
        max_delay_seconds: How long a batch waits for more requests when more were in flight lately; 0 never waits.
    """

    max_queue: int = 1024
    max_delay_seconds: float = 0.0


class Ticket:
    """A request in the queue.

    Args:
        inputs: Validated arrays.
        inner: What `Graph.get_row_shapes` says of them.
        rows: Number of rows; 1 for a model without a batch.
        deadline: `time.monotonic()` after which nobody waits for the answer, or None.
    """

    __slots__ = (
        "arrived",
        "computed_seconds",
        "deadline",
        "future",
        "inner",
        "inputs",
        "is_released",
        "queued_seconds",
        "rows",
    )

    def __init__(self, inputs: Arrays, inner: RowShapes, rows: int, deadline: float | None) -> None:
        self.inputs = inputs
        self.inner = inner
        self.rows = rows
        self.deadline = deadline
        # Whether its rows count no longer as accepted.
        self.is_released = False
        self.arrived = time.monotonic()
        self.queued_seconds = 0.0
        self.computed_seconds = 0.0
        self.future: asyncio.Future[dict[str, NDArray[Any]]]


class Batcher:
    """Computes the requests of one graph.

    Args:
        graph: Loaded and warm.
        thread: The process' graph thread.
        limits: See `Limits`.
        metrics: The model's.
    """

    def __init__(
        self,
        graph: Graph,
        thread: GraphThread,
        limits: Limits,
        metrics: ModelMetrics,
    ) -> None:
        self.graph = graph
        self._thread = thread
        self._loop: asyncio.AbstractEventLoop
        self._limits = limits
        self._metrics = metrics
        self._queue: deque[Ticket] = deque()
        self._scheduled = False
        self._noticing = False
        self._crowd = 1.0
        # What was validated before: most requests are like another.
        self._known: dict[tuple[Any, ...], tuple[RowShapes, int]] = {}
        # How long a batch of each size took lately.
        self._seconds: dict[int, float] = {}
        self._arrival = threading.Event()
        self._wanted = 0
        self.rows = 0
        self.requests = 0
        self._drained: asyncio.Future[None] | None = None

    def admit(self) -> None:
        """Refuse before the body is read when there is no room for a single row.

        Raises:
            OverloadedError: The queue is full.
        """
        if self.rows >= self._limits.max_queue:
            raise OverloadedError(self.rows, self._limits.max_queue)

    def submit(self, inputs: Arrays, *, deadline: float | None = None) -> Ticket:
        """Queue a request; its `future` gets the outputs. To be called in the event loop.

        Args:
            inputs: One array an input; not changed until the future is done.
            deadline: `time.monotonic()` after which nobody waits for the answer.

        Raises:
            InvalidRequestError: The inputs do not fit the signature or their ranges, or have more rows than the queue
                holds.
            OverloadedError: The queue is full.
        """
        inner, rows = self._examine(inputs)
        limit = self._limits.max_queue
        if rows > limit:
            raise InvalidRequestError(f"a request may have at most {limit} rows, got {rows}", status=413)
        if self.rows + rows > limit:
            raise OverloadedError(self.rows, limit)
        self._loop = asyncio.get_running_loop()
        ticket = Ticket(inputs, inner, rows, deadline)
        ticket.future = self._loop.create_future()
        self.rows += rows
        self.requests += 1
        self._queue.append(ticket)
        if not self._noticing:
            # After what this turn of the loop still submits: it came at the same time, and costs little in one batch.
            self._noticing = True
            self._loop.call_soon(self._notice)
        if self._wanted and len(self._queue) >= self._wanted:
            self._arrival.set()
        return ticket

    async def wait(self, ticket: Ticket) -> dict[str, NDArray[Any]]:
        """Return the outputs of a request; its rows are released at once when the waiting task is cancelled.

        Raises:
            RequestError: The request was not computed.
        """
        try:
            return await ticket.future
        except asyncio.CancelledError:
            self._release(ticket)
            self._metrics.set_in_flight(self.requests)
            self._check_drained()
            raise

    def expire(self) -> None:
        """Answer those in the queue whose time is over, although the graph is busy. To be called in the event loop."""
        now = time.monotonic()
        for ticket in tuple(self._queue):
            if ticket.deadline is not None and now > ticket.deadline and not ticket.future.done():
                ticket.future.set_exception(DeadlineExceededError())

    async def drain(self) -> None:
        """Return when everything that was submitted is answered."""
        if self.requests:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    def _examine(self, inputs: Arrays) -> tuple[RowShapes, int]:
        """Return the inputs' inner shapes and the number of their rows."""
        kind = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        found = self._known.get(kind)
        if found is None:
            try:
                self.graph.validate(inputs)
                inner = self.graph.get_row_shapes(inputs)
            except ValidationError as error:
                raise InvalidRequestError(error.message) from None
            found = inner, len(next(iter(inputs.values()))) if self.graph.batch else 1
            if len(self._known) < _KNOWN:
                self._known[kind] = found
        try:
            self.graph.check_ranges(inputs)
        except ValidationError as error:
            raise InvalidRequestError(error.message) from None
        return found

    def _notice(self) -> None:
        self._noticing = False
        self._metrics.set_in_flight(self.requests)
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._thread.put(self._run)

    def _run(self) -> None:
        if self._limits.max_delay_seconds > 0:
            self._wait_for_more()
        batch, refused = self._take()
        finished: list[tuple[Ticket, Any]] = [(ticket, error) for ticket, error in refused]
        seconds = 0.0
        if batch:
            start = time.monotonic()
            computed = self._compute(batch)
            seconds = time.monotonic() - start
            if not any(isinstance(result, Exception) for _, result in computed):
                self._learn(sum(ticket.rows for ticket in batch), seconds)
            finished += computed
            for ticket in batch:
                ticket.queued_seconds = start - ticket.arrived
                ticket.computed_seconds = seconds
        if finished:
            try:
                self._loop.call_soon_threadsafe(self._deliver, finished, batch, seconds)
            except RuntimeError:  # the loop has ended, and with it everyone who waited
                return
        # In this order: what is appended after the look is noticed when the flag is down.
        self._scheduled = False
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._thread.put(self._run)

    def _wait_for_more(self) -> None:
        queue = self._queue.copy()
        if not queue or self._thread.is_busy():
            return
        # More than a batch holds need not be there, and without a batch nobody is computed with others.
        room = math.ceil(self.graph.max_batch * len(queue) / sum(ticket.rows for ticket in queue))
        wanted = min(int(self._crowd + 0.5), room)
        if len(queue) >= wanted:
            return
        rest = self._limits.max_delay_seconds - (time.monotonic() - queue[0].arrived)
        if rest <= 0:
            return
        self._arrival.clear()
        self._wanted = wanted
        if len(self._queue) < wanted:
            self._arrival.wait(rest)
        self._wanted = 0

    def _choose_room(self) -> int:
        """Return how many rows to take at most.

        20 rows are padded to 32, which a large graph takes twice as long for as for 16: then 16 are taken, and the
        rest begin the next batch. A small graph costs the same for both, and takes all.
        """
        sizes, largest = self.graph.sizes, self.graph.max_batch
        if len(sizes) < 2 or self.graph.varies:
            return largest
        waiting = 0
        for ticket in self._queue.copy():
            waiting += ticket.rows
            if waiting >= largest:
                return largest
        index = bisect.bisect_left(sizes, waiting)
        if index == 0 or sizes[index] == waiting:
            return largest
        whole, part = self._seconds.get(sizes[index]), self._seconds.get(sizes[index - 1])
        if whole is None or part is None or waiting * part >= sizes[index - 1] * whole:
            return largest
        return sizes[index - 1]

    def _learn(self, rows: int, seconds: float) -> None:
        sizes = self.graph.sizes
        if sizes and rows <= sizes[-1]:
            size = sizes[bisect.bisect_left(sizes, rows)]
            self._seconds[size] = seconds + (self._seconds.get(size, seconds) - seconds) * _REMEMBERS

    def _take(self) -> tuple[list[Ticket], list[tuple[Ticket, Exception]]]:
        """Take the oldest request and those that can be computed with it, in order, up to the largest batch."""
        queue, room = self._queue, self._choose_room()
        batch: list[Ticket] = []
        refused: list[tuple[Ticket, Exception]] = []
        others: list[Ticket] = []
        now = time.monotonic()
        while queue:
            ticket = queue[0]
            if batch and (ticket.rows > room or not self.graph.batch):
                break
            queue.popleft()
            if ticket.deadline is not None and now > ticket.deadline:
                refused.append((ticket, DeadlineExceededError()))
            elif ticket.future.done():
                refused.append((ticket, ClientGoneError()))
            elif batch and ticket.inner != batch[0].inner:
                others.append(ticket)
            else:
                batch.append(ticket)
                room -= ticket.rows
                if room <= 0:
                    break
        queue.extendleft(reversed(others))
        return batch, refused

    def _compute(self, batch: Sequence[Ticket]) -> list[tuple[Ticket, Any]]:
        try:
            return list(zip(batch, self.graph.run([ticket.inputs for ticket in batch], batch[0].inner), strict=True))
        except ValidationError as error:
            return [(ticket, InvalidRequestError(error.message)) for ticket in batch]
        except KERNEL_ERRORS as error:
            # One request of a batch must not spoil the others' answers.
            if len(batch) > 1:
                return [result for ticket in batch for result in self._compute([ticket])]
            return [(batch[0], self._explain(error))]

    def _explain(self, error: Exception) -> Exception:
        lines = [line.strip() for line in str(error).splitlines()]
        text = next((line for line in lines if line.strip("-")), type(error).__name__)[:300]
        # The signature may leave dimensions free that the graph does not, and some operators refuse values, such as
        # an index out of range: nothing but a run can tell.
        if self.graph.varies or self.graph.is_sound():
            return InvalidRequestError(f"inputs: the graph cannot compute these: {text}")
        return GraphError(text)

    def _deliver(self, finished: Sequence[tuple[Ticket, Any]], batch: Sequence[Ticket], seconds: float) -> None:
        self._crowd += (self.requests - self._crowd) * _FOLLOWS
        for ticket, result in finished:
            self._release(ticket)
            future = ticket.future
            if future.done():  # cancelled by its client, or expired
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._metrics.set_in_flight(self.requests)
        if batch:
            self._metrics.observe_batch(
                sum(ticket.rows for ticket in batch), seconds, [ticket.queued_seconds for ticket in batch]
            )
        self._check_drained()

    def _release(self, ticket: Ticket) -> None:
        if not ticket.is_released:
            ticket.is_released = True
            self.rows -= ticket.rows
            self.requests -= 1

    def _check_drained(self) -> None:
        if not self.requests and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
