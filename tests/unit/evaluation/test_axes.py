"""Ticks of reports' axes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kfp_mindspore.evaluation.axes import build_axis


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1, "0.00 0.25 0.50 0.75 1.00"),
        (0.1, 0.4, "0.1 0.2 0.3 0.4"),
        (50.3, 57.2, "50 52 54 56 58"),
        (2805.3, 8035, "2,000 4,000 6,000 8,000 10,000"),
        (-160, 160, "-200 -100 0 100 200"),
        (3, 3, "1 2 3 4 5"),
        (1e9, 3e9, "1e+09 1.5e+09 2e+09 2.5e+09 3e+09"),
    ],
)
def test_ticks_are_round(low: float, high: float, texts: str) -> None:
    assert [text for _, text in build_axis(low, high).ticks] == texts.split()


finite = st.floats(-1e12, 1e12)


@given(finite, finite)
@example(0.0, 5e-324)
@example(1e-310, 2e-310)
def test_axis_contains_values_with_few_distinct_ticks(first: float, second: float) -> None:
    low, high = sorted((first, second))
    axis = build_axis(low, high)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low - slack <= low <= high <= axis.high + slack
    assert 2 <= len(axis.ticks) <= 7
    values = [value for value, _ in axis.ticks]
    assert values == sorted(set(values))
