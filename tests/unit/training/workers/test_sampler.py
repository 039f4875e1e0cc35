"""Order and parts of the samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.training.workers.sampler import EpochSampler, get_part


@pytest.mark.parametrize(
    ("count", "parts", "sizes"),
    [(32, 1, [32]), (32, 2, [16, 16]), (32, 3, [10, 11, 11]), (5, 4, [1, 1, 1, 2]), (2, 4, [0, 1, 0, 1])],
)
def test_parts_of_batch_differ_by_at_most_one_sample(count: int, parts: int, sizes: list[int]) -> None:
    items = np.arange(count)
    found = [items[get_part(count, index, parts)] for index in range(parts)]
    assert [len(part) for part in found] == sizes
    assert np.array_equal(np.concatenate(found), items)


@given(
    samples=st.integers(1, 300),
    batch_size=st.integers(1, 64),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6),
)
def test_change_of_workers_in_epoch_loses_and_repeats_no_sample(
    samples: int, batch_size: int, epoch: int, shuffle: bool, sizes: list[tuple[int, int]]
) -> None:
    """Each entry of `sizes` is a gang: steps until it is replaced, and its number of workers."""
    sampler = EpochSampler(samples, batch_size, seed=3, shuffle=shuffle, drop_last=False)
    whole = list(sampler.read(epoch))
    done: list[int] = []
    batches = 0
    for steps, workers in [*sizes, (samples, 2)]:
        # Each worker of a gang has its own iterator, from the position at which the last gang ended.
        position = len(done)
        gang = [sampler.read(epoch, position) for _ in range(workers)]
        for parts in zip(*gang, strict=True):
            own = [batch[get_part(len(batch), rank, workers)] for rank, batch in enumerate(parts)]
            assert np.array_equal(np.concatenate(own), whole[batches])
            done += np.concatenate(own).tolist()
            batches += 1
            steps -= 1
            if not steps:
                break
    assert sorted(done) == list(range(samples))
    assert batches == sampler.steps


@pytest.mark.parametrize(("drop_last", "steps", "sizes"), [(True, 3, [32, 32, 32]), (False, 4, [32, 32, 32, 4])])
def test_last_batch_is_dropped_or_smaller(drop_last: bool, steps: int, sizes: list[int]) -> None:
    sampler = EpochSampler(100, 32, seed=1, drop_last=drop_last)
    assert sampler.steps == steps
    assert [len(batch) for batch in sampler.read(0)] == sizes
    assert sampler.is_finished(sum(sizes))
    assert not sampler.is_finished(sum(sizes[:-1]))


def test_order_depends_on_seed_and_epoch_alone() -> None:
    orders = [
        np.concatenate(list(EpochSampler(64, 16, seed).read(epoch))) for seed, epoch in [(1, 0), (1, 0), (1, 1), (2, 0)]
    ]
    assert np.array_equal(orders[0], orders[1])
    assert not any(np.array_equal(orders[0], other) for other in orders[2:])
