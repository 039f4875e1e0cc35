"""Each job at most once in the queue, with one worker at most, and none lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from kfp_mindspore.operator.process.store import JobKey
from kfp_mindspore.operator.process.workqueue import WorkQueue

A, B = JobKey("ns", "a"), JobKey("ns", "b")
SECONDS = 300


def test_keys_are_queued_once_and_in_order() -> None:
    async def run() -> list[JobKey]:
        queue = WorkQueue()
        for key in (A, B, A):
            queue.add(key)
        assert len(queue) == 2
        return [(await queue.get())[0], (await queue.get())[0]]

    assert asyncio.run(run()) == [A, B]


def test_keys_added_while_active_are_queued_when_done() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add(A)
        await queue.get()
        queue.add(A)
        assert len(queue) == 0
        queue.done(A)
        assert (await asyncio.wait_for(queue.get(), SECONDS))[0] == A
        queue.done(A)
        assert len(queue) == 0

    asyncio.run(run())


def test_earliest_delay_holds() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add_later(A, 3600)
        queue.add_later(A, 0.01)
        queue.add_later(A, 1800)
        assert queue.timers == 1
        assert (await asyncio.wait_for(queue.get(), SECONDS))[0] == A
        assert queue.timers == 0

    asyncio.run(run())


def test_forget_cancels_timer() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add_later(A, 3600)
        queue.forget(A)
        assert queue.timers == 0

    asyncio.run(run())


def test_retry_delays_double_up_to_minute() -> None:
    async def run() -> list[float]:
        queue = WorkQueue()
        pauses = [queue.retry(A) for _ in range(10)]
        queue.reset_failures(A)
        return [*pauses, queue.retry(A)]

    pauses = asyncio.run(run())
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[8:] == [60.0, 60.0, 0.5]


def test_close_and_drain() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add(A)
        queue.add(B)
        await queue.get()
        queue.close()
        asyncio.get_running_loop().call_later(0.01, queue.done, A)
        await asyncio.wait_for(queue.drain(), SECONDS)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.get(), 0.05)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_no_key_has_two_workers_or_is_lost(seed: int) -> None:
    """Workers of random durations, keys added at random: each addition is followed by a reconciliation."""

    async def run() -> None:
        queue, chance = WorkQueue(), random.Random(seed)
        keys = [JobKey("ns", str(number)) for number in range(8)]
        version: Counter[JobKey] = Counter()
        seen: Counter[JobKey] = Counter()
        busy: set[JobKey] = set()

        async def work() -> None:
            while True:
                key, _ = await queue.get()
                assert key not in busy
                busy.add(key)
                found = version[key]
                await asyncio.sleep(chance.random() / 200)
                seen[key] = found
                busy.discard(key)
                queue.done(key)

        workers = [asyncio.create_task(work()) for _ in range(4)]
        for _ in range(300):
            key = chance.choice(keys)
            version[key] += 1
            if chance.random() < 0.3:
                queue.add_later(key, chance.random() / 100)
            else:
                queue.add(key)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() / 200)
        while queue.timers or len(queue) or queue.active:
            await asyncio.sleep(0.005)
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
        assert seen == version

    asyncio.run(asyncio.wait_for(run(), SECONDS))
