"""Geometry of a line chart over epochs, drawn as SVG by the report's template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 468, 10, 196
_STYLES = ("first", "second")

Point = tuple[int, "float | None"]


def compute_chart(
    title: str, series: Mapping[str, Sequence[Point]], *, logarithmic: bool = False
) -> dict[str, Any] | None:
    """Compute the geometry of a chart of at most two series.

    Args:
        title: Title of the chart.
        series: Pairs of epoch and value by name; values that are None or not finite are omitted.
        logarithmic: Whether the value axis may be logarithmic; requires positive values.

    Returns:
        Variables of the template, or None if no series has two points.
    """
    kept = {name: [(x, float(y)) for x, y in points if _is_finite(y)] for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if len(points) > 1}
    if not kept:
        return None
    values = [y for points in kept.values() for _, y in points]
    epochs = [x for points in kept.values() for x, _ in points]
    logarithmic = logarithmic and min(values) > 0 and max(values) / min(values) > 20
    ticks = _compute_decades(min(values), max(values)) if logarithmic else compute_ticks(min(values), max(values))
    low, high = min([*ticks, *values]), max([*ticks, *values])

    def to_x(epoch: float) -> float:
        first, last = min(epochs), max(epochs)
        return round(LEFT + (RIGHT - LEFT) * (epoch - first) / max(last - first, 1), 1)

    def to_y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return round(BOTTOM - (BOTTOM - TOP) * share, 1)

    return {
        "title": title,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": RIGHT,
        "bottom": BOTTOM,
        "y_ticks": [{"at": to_y(tick), "label": f"{tick:g}"} for tick in ticks],
        "x_ticks": [
            {"at": to_x(tick), "label": f"{tick:g}"}
            for tick in compute_ticks(min(epochs), max(epochs))
            if min(epochs) <= tick <= max(epochs) and tick == int(tick)
        ],
        "series": [
            {
                "name": name,
                "style": style,
                "path": "M" + " L".join(f"{to_x(x)} {to_y(y)}" for x, y in points),
                "points": [{"x": to_x(x), "y": to_y(y), "epoch": x, "label": f"{y:.4g}"} for x, y in points],
            }
            for style, (name, points) in zip(_STYLES, kept.items(), strict=False)
        ],
    }


def compute_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return at most `count` + 2 round numbers that enclose a range.

    Args:
        low: Lower end of the range.
        high: Upper end of the range, at least `low`.
        count: Approximate number of intervals.
    """
    size = max(abs(low), abs(high))
    span = high - low
    if span <= 1e-9 * size or size < 1e-30:
        # Constant up to rounding errors.
        span = size if size >= 1e-30 else 1.0
    power = 10 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / count)
    first, last = math.floor(low / step), math.ceil(high / step)
    if first == last:
        last += 1
    return [round(index * step, 12) for index in range(first, last + 1)]


def _compute_decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _is_finite(value: float | None) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)
