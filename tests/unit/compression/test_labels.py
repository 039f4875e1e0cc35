"""Disjoint sets of channels, beside a partition that is kept as plain sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.compression.labels import Channels, compact, spread, varies

COUNT = 8
PAIRS = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)), max_size=12)


def merge(pairs: list[tuple[int, int]]) -> list[set[int]]:
    sets = [{label} for label in range(COUNT)]
    for one, other in pairs:
        joined = next(found for found in sets if one in found) | next(found for found in sets if other in found)
        sets = [found for found in sets if not found & joined] + [joined]
    return sets


@settings(max_examples=40)
@given(pairs=PAIRS)
def test_joined_labels_have_one_representative(pairs: list[tuple[int, int]]) -> None:
    channels = Channels()
    labels = channels.create(COUNT)
    for one, other in pairs:
        channels.join(labels[one : one + 1], labels[other : other + 1])

    roots = channels.find_all(labels)

    assert {frozenset(np.flatnonzero(roots == root).tolist()) for root in roots} == set(map(frozenset, merge(pairs)))
    assert all(channels.find(int(root)) == root for root in roots)


@settings(max_examples=40)
@given(pairs=PAIRS, frozen=st.sets(st.integers(0, COUNT - 1)), late=st.integers(0, 12))
def test_frozen_label_freezes_its_whole_set_whenever_it_was_joined(
    pairs: list[tuple[int, int]], frozen: set[int], late: int
) -> None:
    channels = Channels()
    labels = channels.create(COUNT)
    for one, other in pairs[:late]:
        channels.join(labels[one : one + 1], labels[other : other + 1])
    for label in frozen:
        channels.freeze(labels[label : label + 1], "why")
    for one, other in pairs[late:]:
        channels.join(labels[one : one + 1], labels[other : other + 1])

    for found in merge(pairs):
        assert {channels.get_reason(label) for label in found} == {"why" if found & frozen else ""}


def test_first_reason_is_kept() -> None:
    channels = Channels()
    labels = channels.create(2)

    channels.freeze(labels, "the network's input")
    channels.freeze(labels[:1], "the network's output")

    assert channels.get_reason(0) == "the network's input"


def test_parameter_axis_has_one_set_of_labels() -> None:
    channels = Channels()

    first = channels.get_slot("dense.weight", 0, 3)

    assert channels.get_slot("dense.weight", 0, 3) is first
    assert not set(first) & set(channels.get_slot("dense.weight", 1, 3))


@settings(max_examples=40)
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_spread_labels_vary_along_their_axis_only(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    labels = spread(np.arange(shape[axis]), axis, shape)

    assert labels.shape == tuple(shape)
    assert [varies(labels, other) for other in range(len(shape))] == [
        other == axis and shape[axis] > 1 for other in range(len(shape))
    ]
    assert compact(labels).size == shape[axis]
    np.testing.assert_array_equal(np.broadcast_to(compact(labels), shape), labels)
    np.testing.assert_array_equal(np.broadcast_to(compact(labels, keep=(0,)), shape), labels)


@pytest.mark.parametrize(
    ("axis", "vector", "sets"),
    [(0, [0, 3], [{0, 1, 2}, {3, 4, 5}]), (1, [0, 1, 2], [{0, 3}, {1, 4}, {2, 5}])],
)
def test_vector_joins_the_other_axes(axis: int, vector: list[int], sets: list[set[int]]) -> None:
    channels = Channels()
    labels = channels.create(6).reshape(2, 3)

    assert channels.get_vector(labels, axis).tolist() == vector
    roots = channels.find_all(labels).ravel()
    assert [set(np.flatnonzero(roots == channels.find(label)).tolist()) for label in vector] == sets
