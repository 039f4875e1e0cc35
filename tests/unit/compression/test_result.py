"""Latencies of two graphs: reported with their spread, or withheld."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.compression.result import BLOCKS, Speedup, compare_latency


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            [2.0, 2.1, 2.0, 2.1, 2.0, 9.0, 2.0, 2.0, 2.0, 2.0],
            [1.0] * 10,
            "2.00 times as fast (2.00 to 2.00 in 5 repeats)",
        ),
        # Equal graphs: another process ran during two of the repeats.
        ([1.0, 1.43, 1.0, 1.45, 1.0], [1.0, 1.0, 1.0, 1.0, 1.3], "speed unknown: 0.77 to 1.45 in 5 repeats"),
        ([1.0] * 5, [1.0] * 5, "1.00 times as fast (1.00 to 1.00 in 5 repeats)"),
    ],
    ids=["faster", "busy", "equal"],
)
def test_speed_has_spread_or_is_withheld(before: list[float], after: list[float], text: str) -> None:
    assert compare_latency(before, after).describe() == text


@settings(max_examples=50)
@given(
    before=st.lists(st.floats(1e-4, 10), min_size=BLOCKS, max_size=30),
    after=st.lists(st.floats(1e-4, 10), min_size=BLOCKS, max_size=30),
    factor=st.sampled_from([0.25, 2.0, 8.0]),
)
def test_ratio_lies_in_its_spread_and_follows_the_seconds(
    before: list[float], after: list[float], factor: float
) -> None:
    found = compare_latency(before, after)
    slower = compare_latency([seconds * factor for seconds in before], after)

    assert 0 < found.low <= found.ratio <= found.high
    assert slower.ratio == pytest.approx(factor * found.ratio)
    assert slower.is_reliable == found.is_reliable


@pytest.mark.parametrize(("low", "high", "is_reliable"), [(1.9, 2.1, True), (1.85, 2.2, True), (1.8, 2.3, False)])
def test_repeats_that_differ_by_more_than_a_fifth_are_not_reliable(low: float, high: float, is_reliable: bool) -> None:
    assert Speedup(2.0, low, high).is_reliable is is_reliable
