from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.canonical import canonicalize, digest_json, to_canonical_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def reshape(value: Any, source: random.Random) -> Any:
    """Return a value that means the same: other order, floats for integers, tuples for lists."""
    if isinstance(value, dict):
        items = [(key, reshape(item, source)) for key, item in value.items()]
        source.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return source.choice([list, tuple])(reshape(item, source) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return source.choice([int, float])(value)
    return value


@given(values, st.randoms(use_true_random=False))
def test_values_that_mean_the_same_have_one_digest(value: Any, source: random.Random) -> None:
    other = reshape(value, source)
    assert to_canonical_json(other) == to_canonical_json(value)
    assert digest_json(other) == digest_json(value)
    assert canonicalize(value) == value


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, "1"), (True, 1), (0.5, 1), ([1, 2], [2, 1]), ({"a": 1}, {"b": 1}), (None, {}), (1e300, float("inf"))],
)
def test_values_that_differ_have_two_digests(one: Any, other: Any) -> None:
    assert digest_json(one) != digest_json(other)


def test_other_types_are_converted_by_default() -> None:
    assert to_canonical_json({"b": {1: 2.0}, "a": {3}}, sorted) == '{"a": [3], "b": {"1": 2}}'
