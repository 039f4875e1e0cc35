"""BlockSampler: no sample is lost or repeated, wherever a run resumes and however many workers share a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.training.workers.sampler import BlockSampler, get_part

_blocks = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def _make(blocks: list[int], batch_size: int = 4, **options: bool | int) -> BlockSampler:
    defaults = {"seed": 7, "drop_last": False, "window": 3}
    return BlockSampler(sum(blocks), batch_size, **{**defaults, **options}, blocks=tuple(blocks))


@given(
    blocks=_blocks,
    seed=st.integers(0, 99),
    epoch=st.integers(0, 5),
    window=st.integers(1, 5),
    runs=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_resumed_runs_train_each_sample_once(
    blocks: list[int], seed: int, epoch: int, window: int, runs: list[tuple[int, int, int]]
) -> None:
    """Each run has another batch size and world size and stops after some steps; the last one ends the epoch."""
    position, seen = 0, []
    for batch_size, workers, steps in [*runs, (3, 2, 1000)]:
        sampler = _make(blocks, batch_size, seed=seed, window=window)
        for _, batch in zip(range(steps), sampler.read(epoch, position), strict=False):
            shares = [batch[get_part(len(batch), rank, workers)] for rank in range(workers)]
            seen += np.concatenate(shares).tolist()
            position += len(batch)
    whole = np.concatenate(list(_make(blocks, 5, seed=seed, window=window).read(epoch)))
    assert sorted(seen) == list(range(sum(blocks)))
    assert seen == whole.tolist()
    assert sampler.is_finished(position)


@given(blocks=_blocks, batch_size=st.integers(1, 9))
def test_last_batch_is_dropped_as_by_is_finished(blocks: list[int], batch_size: int) -> None:
    sampler = _make(blocks, batch_size, drop_last=True)
    sizes = [len(batch) for batch in sampler.read(0)]
    assert sizes == [batch_size] * sampler.steps
    assert sampler.is_finished(sum(sizes))


@given(blocks=_blocks, window=st.integers(1, 5))
def test_reader_needs_no_more_blocks_than_window(blocks: list[int], window: int) -> None:
    owner = np.repeat(np.arange(len(blocks)), blocks)
    unread, begun = list(blocks), set()
    for block in owner[np.concatenate(list(_make(blocks, window=window).read(0)))].tolist():
        begun.add(block)
        assert len(begun) <= window
        unread[block] -= 1
        if not unread[block] and all(not unread[one] for one in begun):
            begun.clear()


def test_epochs_differ_and_repeat() -> None:
    sampler = _make([5] * 8)
    first, again, second = (np.concatenate(list(sampler.read(epoch))).tolist() for epoch in (0, 0, 1))
    assert first == again != second


@pytest.mark.parametrize("window", [1, 3])
def test_order_without_shuffle_is_that_of_shards(window: int) -> None:
    assert np.concatenate(list(_make([2, 3, 4], shuffle=False, window=window).read(3))).tolist() == list(range(9))
