"""Code that fails, takes long, never returns, or is waited for by nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mindsporeserver.models import transform_executor
from mindsporeserver.models.transform_executor import TransformExecutor, TransformTimeoutError

WAIT = 60.0


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), WAIT))


def test_results_and_errors_are_handed_on() -> None:
    async def story() -> None:
        threads = TransformExecutor(2, 30)
        assert await asyncio.gather(*(threads.run(pow, 2, power) for power in range(20))) == [
            2**power for power in range(20)
        ]
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)
        assert await threads.run(len, "abc") == 3

    play(story)


def test_only_so_many_run_at_once() -> None:
    async def story() -> None:
        threads, lock, running, most = TransformExecutor(3), threading.Lock(), 0, 0
        barrier = threading.Barrier(3)

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            barrier.wait(WAIT)
            with lock:
                running -= 1

        await asyncio.gather(*(threads.run(work) for _ in range(12)))
        assert most == 3

    play(story)


def test_what_never_returns_is_given_up_and_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_executor, "_MOST_LOST", 2)
    end = threading.Event()

    async def story() -> None:
        threads = TransformExecutor(1, 0.2)
        for lost in (1, 2):
            with pytest.raises(TransformTimeoutError):
                await threads.run(end.wait, WAIT)
            assert threads.exhausted == (lost == 2)
        threads.seconds = WAIT
        assert await threads.run(len, "abc") == 3
        end.set()
        while threads.exhausted:  # until those that came back are counted
            await asyncio.sleep(0.01)

    try:
        play(story)
    finally:
        end.set()


def test_a_call_that_nobody_waits_for_keeps_its_place_until_it_returns() -> None:
    end, started = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        end.wait(WAIT)

    async def story() -> None:
        threads = TransformExecutor(1)
        task: asyncio.Task[Any] = asyncio.create_task(threads.run(work))
        await asyncio.to_thread(started.wait, WAIT)
        task.cancel()
        second = asyncio.create_task(threads.run(len, "abc"))
        await asyncio.sleep(0.05)
        assert not second.done()
        end.set()
        assert await second == 3

    play(story)
