"""Each job at most once in the queue, with one worker at most, and never forgotten."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from kfp_mindspore.operator.store import Key
from kfp_mindspore.operator.workqueue import WorkQueue

A, B, C, D = (Key("ns", name) for name in "abcd")
SECONDS = 30


def test_a_key_waits_once_and_in_its_order() -> None:
    async def run() -> list[Key]:
        queue = WorkQueue()
        for key in (A, B, A):
            queue.add(key)
        assert len(queue) == 2
        return [(await queue.get())[0], (await queue.get())[0]]

    assert asyncio.run(run()) == [A, B]


def test_what_is_added_while_a_worker_has_it_comes_back_when_that_is_done() -> None:
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


def test_of_two_times_the_earlier_holds() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add_later(A, 3600)
        queue.add_later(A, 0.01)
        queue.add_later(A, 1800)
        assert queue.timers == 1
        assert (await asyncio.wait_for(queue.get(), SECONDS))[0] == A
        assert queue.timers == 0

    asyncio.run(run())


def test_a_job_that_is_gone_leaves_no_timer() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add_later(A, 3600)
        queue.forget(A)
        assert queue.timers == 0

    asyncio.run(run())


def test_pauses_double_up_to_a_minute_and_begin_anew() -> None:
    async def run() -> list[float]:
        queue = WorkQueue()
        pauses = [queue.retry(A) for _ in range(10)]
        queue.forget_failures(A)
        return [*pauses, queue.retry(A)]

    pauses = asyncio.run(run())
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[8:] == [60.0, 60.0, 0.5]


def test_closed_it_hands_out_nothing_and_waits_for_what_is_under_way() -> None:
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


def test_what_is_deferred_comes_after_all_others() -> None:
    async def run() -> list[Key]:
        queue = WorkQueue()
        for key in (A, B, C):
            queue.add(key)
        order = []
        for _ in range(5):
            key, _ = await asyncio.wait_for(queue.get(), SECONDS)
            order.append(key)
            # C is the last of those that wait: nobody would come before it.
            assert queue.defer(key) is (len(order) < 3)
            queue.done(key)
        assert len(queue) == 0
        return order

    assert asyncio.run(run()) == [A, B, C, A, B]


def test_beside_others_there_is_one_of_the_deferred_at_a_time() -> None:
    async def run() -> None:
        queue = WorkQueue()
        for key in (A, B, C, D):
            queue.add(key)
        for _ in range(4):
            await queue.get()
        assert not queue.defer(A), "D still works, and nobody else is behind"
        assert queue.defer(B)
        assert queue.defer(C)
        queue.done(B)
        queue.done(C)
        taking = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert not taking.done()
        queue.done(A)
        assert (await asyncio.wait_for(taking, SECONDS))[0] == B
        taking = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert not taking.done()
        # With the end of D there is nobody whom they could hold up.
        queue.done(D)
        assert (await asyncio.wait_for(taking, SECONDS))[0] == C
        assert not queue.defer(B)
        assert not queue.defer(C)

    asyncio.run(run())


def test_what_is_deferred_comes_at_its_time_though_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfp_mindspore.operator.workqueue._LONGEST_DEFERRAL_SECONDS", 0.05)

    async def run() -> int:
        queue = WorkQueue()
        queue.add(A)
        queue.add(B)
        await queue.get()
        assert queue.defer(A)
        queue.done(A)
        for looks in range(100_000):
            key, _ = await asyncio.wait_for(queue.get(), SECONDS)
            if key == A:
                assert not queue.defer(A), "its time does not begin anew"
                return looks
            # The other never stops asking.
            queue.add(B)
            queue.done(B)
            await asyncio.sleep(0.001)
        raise AssertionError("it never came")

    assert asyncio.run(run()) > 0


def test_news_of_what_is_deferred_brings_it_to_its_turn_once() -> None:
    async def run() -> None:
        queue = WorkQueue()
        queue.add(A)
        queue.add(B)
        await queue.get()
        queue.add(A)
        assert queue.defer(A)
        assert queue.active == 1
        queue.done(A)
        assert [(await queue.get())[0] for _ in range(2)] == [B, A]
        assert not queue.defer(A)
        queue.done(A)
        queue.done(B)
        assert len(queue) == 0

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_no_key_has_two_workers_and_none_that_was_added_is_lost(seed: int) -> None:
    """Workers that take random times, keys added at random: each addition is followed by a look."""

    async def run() -> None:
        queue, chance = WorkQueue(), random.Random(seed)
        keys = [Key("ns", str(number)) for number in range(8)]
        version: Counter[Key] = Counter()
        seen: Counter[Key] = Counter()
        busy: set[Key] = set()

        async def work() -> None:
            while True:
                key, _ = await queue.get()
                assert key not in busy
                busy.add(key)
                found = version[key]
                await asyncio.sleep(chance.random() / 200)
                if chance.random() < 0.3 and queue.defer(key):
                    found = seen[key]
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
