"""Line chart geometry over epochs, drawn as SVG by templates/chart.svg.j2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.evaluation.axes import build_axis

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 468, 10, 196
# Classes in templates/chart.css.j2.
STYLES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

Point = tuple[int, "float | None"]


def compute_chart(title: str, series: Mapping[str, Sequence[Point]]) -> dict[str, Any] | None:
    """Compute the geometry for a chart with as many series as STYLES at most.

    Args:
        title: The chart's title.
        series: (epoch, value) pairs by name; values that are not finite numbers are omitted.

    Returns:
        Template variables, or None if no series has two points.
    """
    finite = {
        name: [(x, y) for x, y in points if y is not None and math.isfinite(y)] for name, points in series.items()
    }
    kept = {name: points for name, points in finite.items() if len(points) > 1}
    if not kept:
        return None
    epochs = [x for points in kept.values() for x, _ in points]
    values = [y for points in kept.values() for _, y in points]
    first, last, axis = min(epochs), max(epochs), build_axis(min(values), max(values))

    def to_x(epoch: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * (epoch - first) / max(last - first, 1), 1)

    def to_y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - axis.low) / (axis.high - axis.low), 1)

    return {
        "title": title,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": RIGHT,
        "bottom": BOTTOM,
        "y_ticks": [{"at": to_y(value), "label": text} for value, text in axis.ticks],
        "x_ticks": [{"at": to_x(x), "label": str(x)} for x in _list_epochs(first, last)],
        "series": [
            {
                "name": name,
                "style": style,
                "path": "M" + " L".join(f"{to_x(x)} {to_y(y)}" for x, y in points),
                "points": [{"x": to_x(x), "y": to_y(y), "epoch": x, "label": f"{y:.4g}"} for x, y in points],
            }
            for style, (name, points) in zip(STYLES, kept.items(), strict=False)
        ],
    }


def _list_epochs(first: int, last: int) -> list[int]:
    """Return the first and last epoch, and round numbers between them that are not close to either."""
    gap = (last - first) / 12
    between = [round(value) for value, _ in build_axis(first, last).ticks if value == round(value)]
    return [first, *(epoch for epoch in between if first + gap < epoch < last - gap), last]
