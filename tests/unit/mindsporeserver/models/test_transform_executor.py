"""Transforms that fail, are slow, never return, or whose request was cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mindsporeserver.models import transform_executor
from mindsporeserver.models.transform_executor import TransformExecutor, TransformTimeoutError

WAIT = 60.0


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), WAIT))


def test_results_and_exceptions_are_returned() -> None:
    async def scenario() -> None:
        executor = TransformExecutor(2, 30)
        assert await asyncio.gather(*(executor.run(pow, 2, power) for power in range(20))) == [
            2**power for power in range(20)
        ]
        with pytest.raises(ZeroDivisionError):
            await executor.run(divmod, 1, 0)
        assert await executor.run(len, "abc") == 3

    run(scenario)


def test_concurrency_is_limited() -> None:
    async def scenario() -> None:
        executor, lock, running, most = TransformExecutor(3), threading.Lock(), 0, 0
        barrier = threading.Barrier(3)

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            barrier.wait(WAIT)
            with lock:
                running -= 1

        await asyncio.gather(*(executor.run(work) for _ in range(12)))
        assert most == 3

    run(scenario)


def test_call_that_never_returns_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_executor, "_MAX_ABANDONED", 2)
    end = threading.Event()

    async def scenario() -> None:
        executor = TransformExecutor(1, 0.2)
        for abandoned in (1, 2):
            with pytest.raises(TransformTimeoutError):
                await executor.run(end.wait, WAIT)
            assert executor.exhausted == (abandoned == 2)
        executor.seconds = WAIT
        assert await executor.run(len, "abc") == 3
        end.set()
        while executor.exhausted:  # until the returned calls are counted
            await asyncio.sleep(0.01)

    try:
        run(scenario)
    finally:
        end.set()


def test_cancelled_call_keeps_its_slot_until_it_returns() -> None:
    end, started = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        end.wait(WAIT)

    async def scenario() -> None:
        executor = TransformExecutor(1)
        task: asyncio.Task[Any] = asyncio.create_task(executor.run(work))
        await asyncio.to_thread(started.wait, WAIT)
        task.cancel()
        second = asyncio.create_task(executor.run(len, "abc"))
        await asyncio.sleep(0.05)
        assert not second.done()
        end.set()
        assert await second == 3

    run(scenario)
