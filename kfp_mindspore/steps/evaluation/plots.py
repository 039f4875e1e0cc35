"""Geometry for a plot of points over two numeric axes, drawn as SVG by a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.evaluation.axes import Axis, build_axis

WIDTH, HEIGHT = 420, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 408, 12, 268
# More circles make a page of megabytes.
MAX_POINTS = 1500

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tick:
    """An axis value: position in pixels, and text."""

    at: float
    label: str


@dataclass(frozen=True)
class Plot:
    """A plot in pixels.

    Args:
        title: Title.
        x_label: The horizontal axis's name.
        y_label: The vertical axis's name.
        x_ticks: The horizontal axis's ticks.
        y_ticks: The vertical axis's ticks.
        reference: Path for a perfect model's line.
        points: x, y and radius for each point.
        path: Path through the points in their order; empty for none.
    """

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    reference: str
    points: tuple[tuple[float, float, float], ...]
    path: str


def build_plot(
    title: str,
    x: Floats,
    y: Floats,
    *,
    labels: tuple[str, str],
    limits: tuple[tuple[float, float], tuple[float, float]],
    reference: tuple[tuple[float, float], tuple[float, float]],
    radii: Floats | None = None,
    connected: bool = False,
) -> Plot:
    """Build a plot.

    Args:
        title: Title.
        x: Horizontal values, (N,).
        y: Vertical values, (N,).
        labels: Axis names.
        limits: Each axis's least and greatest value; the axis ends at the next round number.
        reference: Two points on a perfect model's line.
        radii: The points' radii in pixels; default 2.5.
        connected: Whether a line connects the points.
    """
    x_axis, y_axis = (build_axis(low, high) for low, high in limits)

    def place(values: Floats | Sequence[float], axis: Axis, start: int, stop: int) -> list[float]:
        placed: Floats = start + (stop - start) * (np.asarray(values) - axis.low) / (axis.high - axis.low)
        found: list[float] = placed.round(1).tolist()
        return found

    def draw(xs: Floats | Sequence[float], ys: Floats | Sequence[float]) -> list[tuple[float, float]]:
        return list(zip(place(xs, x_axis, LEFT, RIGHT), place(ys, y_axis, BOTTOM, TOP), strict=True))

    def list_ticks(axis: Axis, start: int, stop: int) -> tuple[Tick, ...]:
        values, texts = zip(*axis.ticks, strict=True)
        return tuple(Tick(at, text) for at, text in zip(place(values, axis, start, stop), texts, strict=True))

    rows = np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).astype(int)
    sizes = np.full(len(x), 2.5) if radii is None else radii
    points = draw(x[rows], y[rows])
    return Plot(
        title,
        *labels,
        x_ticks=list_ticks(x_axis, LEFT, RIGHT),
        y_ticks=list_ticks(y_axis, BOTTOM, TOP),
        reference=_to_path(draw(*zip(*reference, strict=True))),
        points=tuple((*point, round(float(size), 1)) for point, size in zip(points, sizes[rows], strict=True)),
        path=_to_path(points) if connected else "",
    )


def _to_path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x} {y}" for x, y in points)
