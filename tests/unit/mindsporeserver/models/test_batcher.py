"""How requests queue, share batches, wait, expire and fail; with a graph that runs when it is told to."""

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
from kfp_mindspore.mindir.graph import Graph
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
from mindsporeserver.observability.metrics import Metrics

Arrays = dict[str, "np.ndarray[Any, Any]"]
POISON = 13.0
SECONDS = 60.0


class HeldGraph:
    """Doubles `x`, when it may; raises for POISON. It is not MindSpore that is tested here, but who is asked when."""

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


class Stage:
    """A batcher over such a graph, and the series that it wrote."""

    def __init__(self, graph: Any, thread: InferenceExecutor, **limits: Any) -> None:
        self.graph, self.thread, self.registry = graph, thread, CollectorRegistry()
        self.batcher = Batcher(graph, thread, Limits(**limits), Metrics(self.registry).for_model("m"))

    def submit(self, value: float, rows: int = 1, width: int = 1, **options: Any) -> Ticket:
        array = np.full((rows, width), value, np.float32)
        return self.batcher.submit({"x": array}, **options)

    async def hold(self) -> Ticket:
        """Submit a request of value 0 and return when the graph computes it; it does so until `release`."""
        self.graph.free.clear()
        # What was computed so far does not count.
        self.graph.entered = threading.Semaphore(0)
        ticket = self.submit(0)
        assert await asyncio.to_thread(self.graph.entered.acquire, timeout=SECONDS)
        return ticket

    def release(self) -> None:
        self.graph.free.set()

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
def play(thread: InferenceExecutor) -> Callable[..., HeldGraph]:
    """Return what runs a story on a new stage, and gives back its graph."""

    def play(story: Callable[[Stage], Awaitable[None]], graph: HeldGraph | None = None, **limits: Any) -> HeldGraph:
        async def run() -> None:
            stage = Stage(graph or HeldGraph(), thread, **limits)
            graphs.append(stage.graph)
            try:
                await story(stage)
                await asyncio.wait_for(stage.batcher.drain(), SECONDS)
                assert (stage.batcher.rows, stage.batcher.requests, stage.read("in_flight")) == (0, 0, 0)
            finally:
                stage.release()

        graphs: list[HeldGraph] = []
        asyncio.run(run())
        return graphs[0]

    return play


def test_what_queues_while_the_graph_runs_is_the_next_batch_in_order(play: Any) -> None:
    async def story(stage: Stage) -> None:
        tickets = [await stage.hold(), *(stage.submit(value) for value in range(1, 7))]
        await asyncio.sleep(0)
        assert (stage.batcher.rows, stage.read("in_flight")) == (7, 7)
        stage.release()
        assert [await get(ticket) for ticket in tickets] == [0, 2, 4, 6, 8, 10, 12]
        assert stage.read("batch_rows_count") == 3
        assert stage.read("batch_rows_sum") == stage.read("queue_seconds_count") == 7

    assert play(story).runs == [[0], [1, 2, 3, 4], [5, 6]]


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
def test_a_batch_holds_whole_requests_and_nobody_overtakes(play: Any, rows: list[int], expected: list[Any]) -> None:
    async def story(stage: Stage) -> None:
        await stage.hold()
        tickets = [stage.submit(index + 1, count) for index, count in enumerate(rows)]
        stage.release()
        assert [await get(ticket) for ticket in tickets] == [2 * (index + 1) for index in range(len(rows))]

    assert play(story).runs == [[0], *expected]


def test_rows_of_other_shapes_wait_for_the_batch_after(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await stage.hold()
        widths = [2, 3, 2, 3, 2, 4, 3]
        tickets = [stage.submit(index + 1, width=width) for index, width in enumerate(widths)]
        stage.release()
        assert [await get(ticket) for ticket in tickets] == [2 * (index + 1) for index in range(len(widths))]

    assert play(story).runs == [[0], [1, 3, 5], [2, 4, 7], [6]]


def test_a_model_without_a_batch_computes_one_after_the_other(play: Any) -> None:
    async def story(stage: Stage) -> None:
        tickets = [stage.submit(1), stage.submit(2), stage.submit(3)]
        assert stage.batcher.rows == 3
        for ticket in tickets:
            await asyncio.wait_for(ticket.future, SECONDS)

    assert play(story, HeldGraph(max_batch=0, batch=0)).runs == [[1], [2], [3]]


def test_a_full_queue_refuses_before_and_after_the_body_and_takes_again(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await stage.hold()
        stage.batcher.admit()
        tickets = [stage.submit(1, 5)]
        with pytest.raises(OverloadedError, match="6 rows are waiting and the limit is 8"):
            stage.submit(2, 3)
        stage.batcher.admit()
        tickets.append(stage.submit(3, 2))
        with pytest.raises(OverloadedError) as caught:
            stage.batcher.admit()
        assert (caught.value.status, caught.value.code) == (503, "RESOURCE_EXHAUSTED")
        stage.release()
        assert [await get(ticket) for ticket in tickets] == [2, 6]
        assert await get(stage.submit(4, 8)) == 8

    play(story, max_queue=8)


def test_a_request_that_never_fits_is_no_overload(play: Any) -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(InvalidRequestError, match="at most 8 rows, got 9") as caught:
            stage.submit(1, 9)
        assert caught.value.status == 413
        for inputs in ({"z": np.zeros((1, 1), np.float32)}, {"x": np.zeros((1, 10), np.float32)}):
            with pytest.raises(InvalidRequestError) as caught:
                stage.batcher.submit(inputs)
            assert caught.value.status == 400

    assert play(story, max_queue=8).runs == []


def test_work_whose_time_is_over_is_not_done(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await stage.hold()
        now = time.monotonic()
        late, early, right = (stage.submit(value, deadline=now + more) for value, more in ((1, 0), (2, 60), (3, 0.001)))
        answered = asyncio.create_task(fail(right))
        while not right.future.done():
            stage.batcher.expire()
            await asyncio.sleep(0.001)
        # Answered although the graph is still busy.
        error = await answered
        assert (error.status, error.code) == (503, "DEADLINE_EXCEEDED")
        stage.release()
        assert isinstance(await fail(late), DeadlineExceededError)
        assert await get(early) == 4

    assert play(story).runs == [[0], [2]]


def test_what_is_computed_already_does_not_expire(play: Any) -> None:
    async def story(stage: Stage) -> None:
        ticket = await stage.hold()
        ticket.deadline = 0.0
        stage.batcher.expire()
        stage.release()
        assert await get(ticket) == 0

    assert play(story).runs == [[0]]


def test_request_of_a_disconnected_client_is_not_computed_and_leaves_the_queue_at_once(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await stage.hold()
        cancelled = [stage.submit(value) for value in (1, 2, 3)]
        kept = stage.submit(4)
        with pytest.raises(OverloadedError):
            stage.batcher.admit()
        for ticket in cancelled:
            ticket.future.cancel()
        await asyncio.sleep(0)
        # The graph is still busy.
        assert (stage.batcher.rows, stage.batcher.requests, stage.read("in_flight")) == (2, 2, 2)
        stage.batcher.admit()
        stage.release()
        assert await get(kept) == 8

    assert play(story, max_queue=5).runs == [[0], [4]]


def test_a_client_that_goes_while_it_is_computed_hurts_nobody(play: Any) -> None:
    async def story(stage: Stage) -> None:
        ticket = await stage.hold()
        ticket.future.cancel()
        after = stage.submit(1)
        stage.release()
        assert await get(after) == 2

    assert play(story).runs == [[0], [1]]


ERRORS = [RuntimeError, ValueError, TypeError, MemoryError, IndexError, KeyError, AttributeError, ZeroDivisionError]


@pytest.mark.parametrize("kind", [*ERRORS, AssertionError, NotImplementedError, NameError, OSError])
def test_one_request_that_fails_spoils_no_other_of_its_batch(play: Any, kind: type[Exception]) -> None:
    async def story(stage: Stage) -> None:
        stage.graph.error = kind("kernel said no")
        await stage.hold()
        tickets = [stage.submit(value) for value in (1, POISON, 2)]
        stage.release()
        assert [await get(tickets[0]), await get(tickets[2])] == [2, 4]
        error = await fail(tickets[1])
        assert isinstance(error, InvalidRequestError)
        assert error.message.startswith("inputs: the graph cannot compute these: ")
        assert "kernel said no" in error.message
        assert await get(stage.submit(3)) == 6
        assert stage.thread.is_alive()

    assert play(story).runs == [[0], [1, POISON, 2], [1], [POISON, 2], [POISON], [2], [3]]


def test_search_for_the_request_at_fault_ends_after_a_number_of_failures(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await stage.hold()
        tickets = [stage.submit(POISON) for _ in range(16)]
        stage.release()
        errors = [await fail(ticket) for ticket in tickets]
        assert {type(error) for error in errors} == {GraphError}
        assert "another request of the same batch" in errors[0].message
        assert "index 13 is out of range" in errors[0].message
        assert await get(stage.submit(3)) == 6

    runs = play(story, HeldGraph(16)).runs
    # 1 + 2 + 4 halves, and the first quarter's half.
    assert [len(run) for run in runs[1:-1]] == [16, 8, 8, 4, 4, 4, 4, 2]
    assert len(runs) - 2 == MAX_FAILURES


def test_search_for_the_request_at_fault_ends_when_failures_take_long(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_computation, "MAX_FAILURE_SECONDS", 0.0)

    async def story(stage: Stage) -> None:
        await stage.hold()
        tickets = [stage.submit(value) for value in (1, POISON)]
        stage.release()
        assert [(await fail(ticket)).status for ticket in tickets] == [500, 500]

    assert play(story).runs == [[0], [1, POISON]]


@pytest.mark.parametrize(("sound", "varies", "kind"), [(False, False, GraphError), (False, True, InvalidRequestError)])
def test_whose_fault_a_failure_is(play: Any, sound: bool, varies: bool, kind: type[RequestError]) -> None:
    async def story(stage: Stage) -> None:
        stage.graph.sound, stage.graph.varies = sound, varies
        error = await fail(stage.submit(POISON))
        assert type(error) is kind
        assert error.message.endswith("kernel: index 13 is out of range")

    play(story)


def test_an_error_without_words_and_one_with_many(play: Any) -> None:
    async def story(stage: Stage) -> None:
        stage.graph.sound = False
        stage.graph.error = MemoryError()
        assert (await fail(stage.submit(POISON))).message == "the model cannot compute this: MemoryError"
        stage.graph.error = RuntimeError("x" * 100_000)
        assert len((await fail(stage.submit(POISON))).message) < 400

    play(story)


def test_what_the_graph_says_of_the_shape_is_the_clients_mistake(play: Any) -> None:
    async def story(stage: Stage) -> None:
        stage.graph.error = ValidationError(["inputs: one shape too many"])
        error = await fail(stage.submit(POISON))
        assert (error.status, error.message) == (400, "inputs: one shape too many")

    play(story)


def test_a_single_client_never_waits(play: Any) -> None:
    async def story(stage: Stage) -> None:
        start = time.monotonic()
        for value in range(100, 120):
            assert await get(stage.submit(value)) == 2 * value
        assert time.monotonic() - start < SECONDS

    assert len(play(story, max_delay_seconds=300).runs) == 20


async def crowd(stage: Stage) -> None:
    """Let the batcher see four requests in flight."""
    tickets = [await stage.hold(), *(stage.submit(9) for _ in range(3))]
    stage.release()
    for ticket in tickets:
        await get(ticket)
    while stage.batcher.requests:
        await asyncio.sleep(0)
    stage.graph.runs.clear()


def test_several_clients_wait_for_each_other_and_fill_a_batch(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await crowd(stage)
        first = stage.submit(1)
        await asyncio.sleep(0.1)
        assert stage.graph.runs == []
        others = [stage.submit(2), stage.submit(3)]
        start = time.monotonic()
        assert [await get(ticket) for ticket in (first, *others)] == [2, 4, 6]
        assert time.monotonic() - start < SECONDS
        assert first.queued_seconds >= 0.1

    assert play(story, max_delay_seconds=300).runs == [[1, 2, 3]]


def test_the_delay_is_the_longest_and_a_client_that_is_alone_soon_does_not_wait(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await crowd(stage)
        waits = []
        for value in range(6):
            ticket = stage.submit(value)
            await get(ticket)
            waits.append(ticket.queued_seconds)
        assert waits[0] >= 0.99 * 0.2
        assert [wait for wait in waits[3:] if wait >= 0.2] == []

    play(story, max_delay_seconds=0.2)


@pytest.mark.parametrize(("batch", "rows", "runs"), [(-1, 4, [[1, 2]]), (-1, 8, [[1], [2]]), (0, 1, [[1], [2]])])
def test_nobody_waits_for_what_his_batch_cannot_hold(play: Any, batch: int, rows: int, runs: list[Any]) -> None:
    async def story(stage: Stage) -> None:
        await crowd(stage)
        tickets = [stage.submit(value, rows) for value in (1, 2)]
        assert [await get(ticket) for ticket in tickets] == [2, 4]

    graph = HeldGraph(8 if batch else 0, batch)
    assert play(story, graph, max_delay_seconds=300).runs == runs


def test_nobody_waits_while_another_model_has_work(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await crowd(stage)
        # The last batch has let go of the thread: the next one is put in order.
        await asyncio.wrap_future(stage.thread.call(lambda: None))
        gate = threading.Event()
        stage.thread.put(lambda: (gate.wait(SECONDS), None)[1])
        ticket = stage.submit(1)
        await asyncio.sleep(0)
        other = stage.thread.call(lambda: 7)
        gate.set()
        assert await get(ticket) == 2
        assert await asyncio.wrap_future(other) == 7

    play(story, max_delay_seconds=300)


def test_drain_returns_when_all_is_answered(play: Any) -> None:
    async def story(stage: Stage) -> None:
        await asyncio.wait_for(stage.batcher.drain(), SECONDS)
        tickets = [await stage.hold(), stage.submit(1), stage.submit(POISON), stage.submit(2, deadline=0.0)]
        failures = [asyncio.create_task(fail(ticket)) for ticket in tickets[2:]]
        drains = [asyncio.create_task(stage.batcher.drain()) for _ in range(2)]
        impatient = asyncio.create_task(stage.batcher.drain())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        assert not any(task.done() for task in drains)
        stage.release()
        await asyncio.wait_for(asyncio.gather(*drains), SECONDS)
        assert all(ticket.future.done() for ticket in tickets)
        await asyncio.gather(*failures)

    play(story)


def test_a_loop_that_ended_does_not_end_the_graph_thread(thread: InferenceExecutor) -> None:
    graph = HeldGraph()

    async def leave() -> None:
        await Stage(graph, thread).hold()

    asyncio.run(leave())
    graph.free.set()
    assert thread.call(lambda: 7).result(SECONDS) == 7


def test_the_times_of_a_request_are_told(play: Any) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.hold()
        second = stage.submit(1)
        await asyncio.sleep(0.05)
        stage.release()
        await get(second)
        assert first.queued_seconds < first.computed_seconds
        assert first.computed_seconds >= 0.05
        assert second.queued_seconds >= 0.05 > second.computed_seconds

    play(story)


REQUESTS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from(["well", "well", "poison", "late", "gone"])),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 4), st.booleans())
def test_everybody_gets_his_own_answer_whatever_the_others_are(
    requests: list[tuple[int, int, str]], max_batch: int, pause: bool
) -> None:
    thread = InferenceExecutor()
    options: dict[str, dict[str, Any]] = {"late": {"deadline": 0.0}}
    kinds = {"poison": (InvalidRequestError, GraphError), "late": (DeadlineExceededError,)}

    async def run() -> list[list[float]]:
        graph = HeldGraph(max_batch)
        stage = Stage(graph, thread)

        async def ask(index: int, rows: int, width: int, fate: str) -> None:
            ticket = stage.submit(POISON if fate == "poison" else 100 + index, rows, width, **options.get(fate, {}))
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
        await stage.batcher.drain()
        assert (stage.batcher.rows, stage.batcher.requests) == (0, 0)
        return graph.runs

    try:
        runs = asyncio.run(run())
    finally:
        thread.close()
    assert all(len(batch) <= max_batch for batch in runs)


@pytest.mark.mindspore
def test_the_real_graph(models: Path, thread: InferenceExecutor) -> None:
    bundle = ModelBundle.open(models / "free")
    verified = bundle.read_verified()
    inputs, outputs = np.asarray(verified.inputs["image"]), np.asarray(verified.outputs["output"])
    graph = Graph(bundle, max_batch=8)
    random = np.random.default_rng(3)

    async def run() -> None:
        await asyncio.wrap_future(thread.call(graph.load))
        await asyncio.wrap_future(thread.call(graph.warm_all))
        stage = Stage(graph, thread)
        slices = [slice(start, start + int(random.integers(1, 20))) for start in random.integers(0, 40, 60).tolist()]
        tickets = [stage.batcher.submit({"image": inputs[rows]}) for rows in slices]
        for rows, ticket in zip(slices, tickets, strict=True):
            found = await asyncio.wait_for(ticket.future, SECONDS)
            np.testing.assert_allclose(found["output"], outputs[rows], atol=1e-5)
        with pytest.raises(InvalidRequestError, match="shape must be"):
            stage.batcher.submit({"image": inputs[0]})
        assert 8 <= stage.read("batch_rows_count") <= 60
        await asyncio.wrap_future(thread.call(graph.release))

    asyncio.run(run())
