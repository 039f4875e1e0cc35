"""The geometry of a small line chart by epoch; the report's template draws it as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 468, 10, 196
_STYLES = ("first", "second")

Point = tuple[int, "float | None"]


def draw_chart(
    title: str, series: Mapping[str, Sequence[Point]], *, logarithmic: bool = False
) -> dict[str, Any] | None:
    """Lay out a chart of at most two series.

    Args:
        title: Its title.
        series: Pairs of epoch and value by name; None and what is not finite are left out.
        logarithmic: Whether the values' axis is logarithmic; only when all are above 0.

    Returns:
        What the template needs, or None when no series has two points.
    """
    kept = {name: [(x, float(y)) for x, y in points if _is_finite(y)] for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if len(points) > 1}
    if not kept:
        return None
    values = [y for points in kept.values() for _, y in points]
    epochs = [x for points in kept.values() for x, _ in points]
    logarithmic = logarithmic and min(values) > 0 and max(values) / min(values) > 20
    ticks = _choose_decades(min(values), max(values)) if logarithmic else choose_ticks(min(values), max(values))
    low, high = min([*ticks, *values]), max([*ticks, *values])

    def place_x(epoch: float) -> float:
        first, last = min(epochs), max(epochs)
        return round(LEFT + (RIGHT - LEFT) * (epoch - first) / max(last - first, 1), 1)

    def place_y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return round(BOTTOM - (BOTTOM - TOP) * share, 1)

    return {
        "title": title,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": RIGHT,
        "bottom": BOTTOM,
        "y_ticks": [{"at": place_y(tick), "label": f"{tick:g}"} for tick in ticks],
        "x_ticks": [
            {"at": place_x(tick), "label": f"{tick:g}"}
            for tick in choose_ticks(min(epochs), max(epochs))
            if min(epochs) <= tick <= max(epochs) and tick == int(tick)
        ],
        "series": [
            {
                "name": name,
                "style": style,
                "path": "M" + " L".join(f"{place_x(x)} {place_y(y)}" for x, y in points),
                "points": [{"x": place_x(x), "y": place_y(y), "epoch": x, "label": f"{y:.4g}"} for x, y in points],
            }
            for style, (name, points) in zip(_STYLES, kept.items(), strict=False)
        ],
    }


def choose_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers, at most `count` + 2, that enclose a range.

    Args:
        low: Its lower end.
        high: Its upper end, not below `low`.
        count: About how many steps between them.
    """
    size = max(abs(low), abs(high))
    span = high - low
    if span <= 1e-9 * size or size < 1e-30:
        # Flat, but for rounding.
        span = size if size >= 1e-30 else 1.0
    power = 10 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / count)
    first, last = math.floor(low / step), math.ceil(high / step)
    if first == last:
        last += 1
    return [round(index * step, 12) for index in range(first, last + 1)]


def _choose_decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _is_finite(value: float | None) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)
