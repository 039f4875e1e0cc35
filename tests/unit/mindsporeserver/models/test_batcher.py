"""Queueing, batching, delay, expiry and failure of requests, with a fake graph that the test holds and releases."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph.execution import Graph
from mindsporeserver.errors import (
    DeadlineExceededError,
    GraphError,
    InvalidRequestError,
    OverloadedError,
    RequestError,
)
from mindsporeserver.models import batch_computation
from mindsporeserver.models.batch_computation import MAX_FAILURES
from mindsporeserver.models.batcher import Batcher, Limits, Ticket
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.observability.metrics import ServerMetrics

Arrays = dict[str, "np.ndarray[Any, Any]"]
POISON = 13.0
SECONDS = 60.0


class FakeGraph:
    """Fake graph: doubles `x` once it is released; raises for POISON."""

    varies = False

    def __init__(self, max_batch: int = 4, batch: int = -1) -> None:
        self.max_batch, self.batch = max_batch, batch
        self.runs: list[list[float]] = []
        self.error: Exception = RuntimeError("----\nkernel: index 13 is out of range\n----")
        self.sound = True
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Semaphore(0)

    def validate(self, inputs: Mapping[str, Any]) -> None:
        if set(inputs) != {"x"}:
            raise ValidationError([f"input 'x': missing, got {', '.join(inputs)}"])

    def check_ranges(self, inputs: dict[str, np.ndarray]) -> None:
        pass

    def get_row_shapes(self, inputs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        if inputs["x"].shape[-1] > 9:
            raise ValidationError(["dimension 'n': must be at most 9"])
        return (inputs["x"].shape[1:],)

    def run(self, parts: Sequence[Mapping[str, Any]], inner: Any) -> list[Arrays]:
        self.runs.append([float(part["x"].ravel()[0]) for part in parts])
        self.entered.release()
        assert self.free.wait(SECONDS)
        assert all(part["x"].shape[1:] == inner[0] for part in parts)
        assert len(parts) == 1 or sum(len(part["x"]) for part in parts) <= self.max_batch
        if any((part["x"] == POISON).any() for part in parts):
            raise self.error
        return [{"y": part["x"] * 2} for part in parts]

    def is_sound(self) -> bool:
        return self.sound


class Harness:
    """A batcher of a fake graph, and its metrics."""

    def __init__(self, graph: Any, thread: InferenceExecutor, **limits: Any) -> None:
        self.graph, self.thread, self.registry = graph, thread, CollectorRegistry()
        self.batcher = Batcher(graph, thread, Limits(**limits), ServerMetrics(self.registry).for_model("m"))

    def submit(self, value: float, rows: int = 1, width: int = 1, **options: Any) -> Ticket:
        array = np.full((rows, width), value, np.float32)
        return self.batcher.submit({"x": array}, **options)

    async def hold(self) -> Ticket:
        """Submit a request of value 0 and return when the graph computes it, which ends at `release`."""
        self.graph.free.clear()
        # Earlier batches are not counted.
        self.graph.entered = threading.Semaphore(0)
        ticket = self.submit(0)
        assert await asyncio.to_thread(self.graph.entered.acquire, timeout=SECONDS)
        return ticket

    def release(self) -> None:
        self.graph.free.set()

    async def wait_idle(self) -> None:
        while self.batcher.requests:
            await asyncio.sleep(0.001)

    def read(self, name: str) -> float:
        return self.registry.get_sample_value(f"mindsporeserver_{name}", {"model_name": "m"}) or 0.0


async def get(ticket: Ticket) -> float:
    outputs = await asyncio.wait_for(ticket.future, SECONDS)
    assert len(outputs["y"]) == ticket.rows
    return float(outputs["y"].ravel()[0])


async def fail(ticket: Ticket) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await asyncio.wait_for(ticket.future, SECONDS)
    return caught.value


@pytest.fixture
def thread() -> Iterator[InferenceExecutor]:
    thread = InferenceExecutor()
    yield thread
    thread.close()


@pytest.fixture
def run_scenario(thread: InferenceExecutor) -> Callable[..., FakeGraph]:
    """Return a function that runs a scenario with a new batcher, and returns its graph."""

    def run_scenario(
        scenario: Callable[[Harness], Awaitable[None]], graph: FakeGraph | None = None, **limits: Any
    ) -> FakeGraph:
        async def run() -> None:
            harness = Harness(graph or FakeGraph(), thread, **limits)
            graphs.append(harness.graph)
            try:
                await scenario(harness)
                await asyncio.wait_for(harness.wait_idle(), SECONDS)
                assert (harness.batcher.rows, harness.batcher.requests, harness.read("in_flight")) == (0, 0, 0)
            finally:
                harness.release()

        graphs: list[FakeGraph] = []
        asyncio.run(run())
        return graphs[0]

    return run_scenario


def test_requests_queued_while_graph_runs_are_next_batch(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        tickets = [await harness.hold(), *(harness.submit(value) for value in range(1, 7))]
        await asyncio.sleep(0)
        assert (harness.batcher.rows, harness.read("in_flight")) == (7, 7)
        harness.release()
        assert [await get(ticket) for ticket in tickets] == [0, 2, 4, 6, 8, 10, 12]
        assert harness.read("batch_rows_count") == 3
        assert harness.read("batch_rows_sum") == harness.read("queue_seconds_count") == 7

    assert run_scenario(scenario).runs == [[0], [1, 2, 3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 1, 2], [[1, 2, 3]]),
        ([3, 2, 1], [[1], [2, 3]]),
        ([2, 2, 1], [[1, 2], [3]]),
        ([4, 1], [[1], [2]]),
        ([9, 1, 1], [[1], [2, 3]]),
        ([1, 9, 1], [[1], [2], [3]]),
    ],
    ids=str,
)
def test_batch_holds_whole_requests_in_order(run_scenario: Any, rows: list[int], expected: list[Any]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.hold()
        tickets = [harness.submit(index + 1, count) for index, count in enumerate(rows)]
        harness.release()
        assert [await get(ticket) for ticket in tickets] == [2 * (index + 1) for index in range(len(rows))]

    assert run_scenario(scenario).runs == [[0], *expected]


def test_requests_of_another_shape_are_batch_after(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.hold()
        widths = [2, 3, 2, 3, 2, 4, 3]
        tickets = [harness.submit(index + 1, width=width) for index, width in enumerate(widths)]
        harness.release()
        assert [await get(ticket) for ticket in tickets] == [2 * (index + 1) for index in range(len(widths))]

    assert run_scenario(scenario).runs == [[0], [1, 3, 5], [2, 4, 7], [6]]


def test_model_without_batch_computes_requests_one_by_one(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        tickets = [harness.submit(1), harness.submit(2), harness.submit(3)]
        assert harness.batcher.rows == 3
        for ticket in tickets:
            await asyncio.wait_for(ticket.future, SECONDS)

    assert run_scenario(scenario, FakeGraph(max_batch=0, batch=0)).runs == [[1], [2], [3]]


def test_full_queue_refuses_requests_until_it_has_room(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.hold()
        harness.batcher.admit()
        tickets = [harness.submit(1, 5)]
        with pytest.raises(OverloadedError, match="6 rows are queued, the limit is 8"):
            harness.submit(2, 3)
        harness.batcher.admit()
        tickets.append(harness.submit(3, 2))
        with pytest.raises(OverloadedError) as caught:
            harness.batcher.admit()
        assert (caught.value.status, caught.value.code) == (503, "RESOURCE_EXHAUSTED")
        harness.release()
        assert [await get(ticket) for ticket in tickets] == [2, 6]
        await harness.wait_idle()
        assert await get(harness.submit(4, 8)) == 8

    run_scenario(scenario, max_queue=8)


def test_request_larger_than_queue_gets_413(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        with pytest.raises(InvalidRequestError, match="at most 8 rows, got 9") as caught:
            harness.submit(1, 9)
        assert caught.value.status == 413
        for inputs in ({"z": np.zeros((1, 1), np.float32)}, {"x": np.zeros((1, 10), np.float32)}):
            with pytest.raises(InvalidRequestError) as caught:
                harness.batcher.submit(inputs)
            assert caught.value.status == 400

    assert run_scenario(scenario, max_queue=8).runs == []


def test_expired_request_is_not_computed(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.hold()
        now = time.monotonic()
        late, early, right = (
            harness.submit(value, deadline=now + more) for value, more in ((1, 0), (2, 60), (3, 0.001))
        )
        answered = asyncio.create_task(fail(right))
        while not right.future.done():
            harness.batcher.expire()
            await asyncio.sleep(0.001)
        # Completed although the graph is still busy.
        error = await answered
        assert (error.status, error.code) == (503, "DEADLINE_EXCEEDED")
        harness.release()
        assert isinstance(await fail(late), DeadlineExceededError)
        assert await get(early) == 4

    assert run_scenario(scenario).runs == [[0], [2]]


def test_request_in_computation_does_not_expire(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        ticket = await harness.hold()
        ticket.deadline = 0.0
        harness.batcher.expire()
        harness.release()
        assert await get(ticket) == 0

    assert run_scenario(scenario).runs == [[0]]


def test_request_of_disconnected_client_is_not_computed_and_leaves_queue_at_once(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.hold()
        cancelled = [harness.submit(value) for value in (1, 2, 3)]
        kept = harness.submit(4)
        with pytest.raises(OverloadedError):
            harness.batcher.admit()
        for ticket in cancelled:
            ticket.future.cancel()
        await asyncio.sleep(0)
        # The graph is still busy.
        assert (harness.batcher.rows, harness.batcher.requests, harness.read("in_flight")) == (2, 2, 2)
        harness.batcher.admit()
        harness.release()
        assert await get(kept) == 8

    assert run_scenario(scenario, max_queue=5).runs == [[0], [4]]


def test_cancellation_during_computation_affects_no_other_request(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        ticket = await harness.hold()
        ticket.future.cancel()
        after = harness.submit(1)
        harness.release()
        assert await get(after) == 2

    assert run_scenario(scenario).runs == [[0], [1]]


ERRORS = [RuntimeError, ValueError, TypeError, MemoryError, IndexError, KeyError, AttributeError, ZeroDivisionError]


@pytest.mark.parametrize("kind", [*ERRORS, AssertionError, NotImplementedError, NameError, OSError])
def test_failing_request_fails_no_other_of_its_batch(run_scenario: Any, kind: type[Exception]) -> None:
    async def scenario(harness: Harness) -> None:
        harness.graph.error = kind("kernel said no")
        await harness.hold()
        tickets = [harness.submit(value) for value in (1, POISON, 2)]
        harness.release()
        assert [await get(tickets[0]), await get(tickets[2])] == [2, 4]
        error = await fail(tickets[1])
        assert isinstance(error, InvalidRequestError)
        assert error.message.startswith("inputs: the graph cannot compute these: ")
        assert "kernel said no" in error.message
        assert await get(harness.submit(3)) == 6
        assert harness.thread.is_alive()

    assert run_scenario(scenario).runs == [[0], [1, POISON, 2], [1], [POISON, 2], [POISON], [2], [3]]


def test_search_for_request_at_fault_ends_after_number_of_failures(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.hold()
        tickets = [harness.submit(POISON) for _ in range(16)]
        harness.release()
        errors = [await fail(ticket) for ticket in tickets]
        assert {type(error) for error in errors} == {GraphError}
        assert "another request of the same batch" in errors[0].message
        assert "index 13 is out of range" in errors[0].message
        assert await get(harness.submit(3)) == 6

    runs = run_scenario(scenario, FakeGraph(16)).runs
    # 1 + 2 + 4 halves, and the first quarter's half.
    assert [len(run) for run in runs[1:-1]] == [16, 8, 8, 4, 4, 4, 4, 2]
    assert len(runs) - 2 == MAX_FAILURES


def test_search_for_request_at_fault_ends_when_failures_take_long(
    run_scenario: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_computation, "MAX_FAILURE_SECONDS", 0.0)

    async def scenario(harness: Harness) -> None:
        await harness.hold()
        tickets = [harness.submit(value) for value in (1, POISON)]
        harness.release()
        assert [(await fail(ticket)).status for ticket in tickets] == [500, 500]

    assert run_scenario(scenario).runs == [[0], [1, POISON]]


@pytest.mark.parametrize(("sound", "varies", "kind"), [(False, False, GraphError), (False, True, InvalidRequestError)])
def test_failure_is_clients_only_if_graph_computes_zeros_or_has_free_shapes(
    run_scenario: Any, sound: bool, varies: bool, kind: type[RequestError]
) -> None:
    async def scenario(harness: Harness) -> None:
        harness.graph.sound, harness.graph.varies = sound, varies
        error = await fail(harness.submit(POISON))
        assert type(error) is kind
        assert error.message.endswith("kernel: index 13 is out of range")

    run_scenario(scenario)


def test_empty_and_long_error_messages(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        harness.graph.sound = False
        harness.graph.error = MemoryError()
        assert (await fail(harness.submit(POISON))).message == "the computation of the model failed: MemoryError"
        harness.graph.error = RuntimeError("x" * 100_000)
        assert len((await fail(harness.submit(POISON))).message) < 400

    run_scenario(scenario)


def test_validation_error_of_graph_gets_400(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        harness.graph.error = ValidationError(["inputs: one shape too many"])
        error = await fail(harness.submit(POISON))
        assert (error.status, error.message) == (400, "inputs: one shape too many")

    run_scenario(scenario)


def test_batch_of_single_client_is_not_delayed(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        start = time.monotonic()
        for value in range(100, 120):
            assert await get(harness.submit(value)) == 2 * value
        assert time.monotonic() - start < SECONDS

    assert len(run_scenario(scenario, max_delay_seconds=300).runs) == 20


async def raise_expected_concurrency(harness: Harness) -> None:
    """Have four requests in flight."""
    tickets = [await harness.hold(), *(harness.submit(9) for _ in range(3))]
    harness.release()
    for ticket in tickets:
        await get(ticket)
    while harness.batcher.requests:
        await asyncio.sleep(0)
    harness.graph.runs.clear()


def test_batch_of_several_clients_is_delayed_until_it_is_full(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await raise_expected_concurrency(harness)
        first = harness.submit(1)
        await asyncio.sleep(0.1)
        assert harness.graph.runs == []
        others = [harness.submit(2), harness.submit(3)]
        start = time.monotonic()
        assert [await get(ticket) for ticket in (first, *others)] == [2, 4, 6]
        assert time.monotonic() - start < SECONDS
        assert first.queued_seconds >= 0.1

    assert run_scenario(scenario, max_delay_seconds=300).runs == [[1, 2, 3]]


def test_delay_is_bounded_and_ends_when_one_client_is_left(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await raise_expected_concurrency(harness)
        waits = []
        for value in range(6):
            ticket = harness.submit(value)
            await get(ticket)
            waits.append(ticket.queued_seconds)
        assert waits[0] >= 0.99 * 0.2
        assert [wait for wait in waits[3:] if wait >= 0.2] == []

    run_scenario(scenario, max_delay_seconds=0.2)


@pytest.mark.parametrize(("batch", "rows", "runs"), [(-1, 4, [[1, 2]]), (-1, 8, [[1], [2]]), (0, 1, [[1], [2]])])
def test_full_batch_is_not_delayed(run_scenario: Any, batch: int, rows: int, runs: list[Any]) -> None:
    async def scenario(harness: Harness) -> None:
        await raise_expected_concurrency(harness)
        tickets = [harness.submit(value, rows) for value in (1, 2)]
        assert [await get(ticket) for ticket in tickets] == [2, 4]

    graph = FakeGraph(8 if batch else 0, batch)
    assert run_scenario(scenario, graph, max_delay_seconds=300).runs == runs


def test_batch_is_not_delayed_while_another_model_has_work(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await raise_expected_concurrency(harness)
        # The last batch has released the thread: the next one is prepared.
        await asyncio.wrap_future(harness.thread.call(lambda: None))
        gate = threading.Event()
        harness.thread.put(lambda: (gate.wait(SECONDS), None)[1])
        ticket = harness.submit(1)
        await asyncio.sleep(0)
        other = harness.thread.call(lambda: 7)
        gate.set()
        assert await get(ticket) == 2
        assert await asyncio.wrap_future(other) == 7

    run_scenario(scenario, max_delay_seconds=300)


def test_closed_event_loop_does_not_end_executor(thread: InferenceExecutor) -> None:
    graph = FakeGraph()

    async def leave() -> None:
        await Harness(graph, thread).hold()

    asyncio.run(leave())
    graph.free.set()
    assert thread.call(lambda: 7).result(SECONDS) == 7


def test_ticket_has_times_in_queue_and_computation(run_scenario: Any) -> None:
    async def scenario(harness: Harness) -> None:
        started = time.monotonic()
        first = await harness.hold()
        second = harness.submit(1)
        await asyncio.sleep(0.05)
        harness.release()
        await get(second)
        seconds = time.monotonic() - started
        assert min(first.computed_seconds, second.queued_seconds) >= 0.05
        assert first.queued_seconds + first.computed_seconds + second.computed_seconds <= seconds
        assert second.queued_seconds + second.computed_seconds <= seconds

    run_scenario(scenario)


REQUESTS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from(["well", "well", "poison", "late", "gone"])),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 4), st.booleans())
def test_each_request_gets_its_own_outcome(requests: list[tuple[int, int, str]], max_batch: int, pause: bool) -> None:
    thread = InferenceExecutor()
    options: dict[str, dict[str, Any]] = {"late": {"deadline": 0.0}}
    kinds = {"poison": (InvalidRequestError, GraphError), "late": (DeadlineExceededError,)}

    async def run() -> list[list[float]]:
        graph = FakeGraph(max_batch)
        harness = Harness(graph, thread)

        async def ask(index: int, rows: int, width: int, fate: str) -> None:
            ticket = harness.submit(POISON if fate == "poison" else 100 + index, rows, width, **options.get(fate, {}))
            if fate == "gone":
                ticket.future.cancel()
            elif fate in kinds:
                assert type(await fail(ticket)) in kinds[fate]
            else:
                found = await asyncio.wait_for(ticket.future, SECONDS)
                assert found["y"].tolist() == [[2 * (100 + index)] * width] * rows

        tasks = []
        for index, request in enumerate(requests):
            tasks.append(asyncio.create_task(ask(index, *request)))
            if pause:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await harness.wait_idle()
        assert (harness.batcher.rows, harness.batcher.requests) == (0, 0)
        return graph.runs

    try:
        runs = asyncio.run(run())
    finally:
        thread.close()
    assert all(len(batch) <= max_batch for batch in runs)


@pytest.mark.mindspore
def test_real_graph(models: Path, thread: InferenceExecutor) -> None:
    bundle = ModelBundle.open(models / "free")
    verified = bundle.read_verified()
    inputs, outputs = np.asarray(verified.inputs["image"]), np.asarray(verified.outputs["output"])
    graph = Graph(bundle, max_batch=8)
    random = np.random.default_rng(3)

    async def run() -> None:
        await asyncio.wrap_future(thread.call(graph.load))
        await asyncio.wrap_future(thread.call(graph.warm_all))
        harness = Harness(graph, thread)
        slices = [slice(start, start + int(random.integers(1, 20))) for start in random.integers(0, 40, 60).tolist()]
        tickets = [harness.batcher.submit({"image": inputs[rows]}) for rows in slices]
        for rows, ticket in zip(slices, tickets, strict=True):
            found = await asyncio.wait_for(ticket.future, SECONDS)
            np.testing.assert_allclose(found["output"], outputs[rows], atol=1e-5)
        with pytest.raises(InvalidRequestError, match="shape must be"):
            harness.batcher.submit({"image": inputs[0]})
        assert 8 <= harness.read("batch_rows_count") <= 60
        await asyncio.wrap_future(thread.call(graph.release))

    asyncio.run(run())
