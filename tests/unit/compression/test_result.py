"""Latencies of two graphs: reported with their spread, or withheld."""

from __future__ import annotations

import pytest

from kfp_mindspore.compression.result import compare_latency


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
