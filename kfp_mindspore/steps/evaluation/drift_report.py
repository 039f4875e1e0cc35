"""A drift report's HTML page, and its numbers in Prometheus' text format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from kfp_mindspore.evaluation.axes import build_axis
from kfp_mindspore.steps.evaluation.plots import BOTTOM, LEFT, RIGHT, TOP

if TYPE_CHECKING:
    from kfp_mindspore.evaluation.drift import Distribution, DriftTest
    from kfp_mindspore.mindir.monitoring.monitor import DriftReport

# A page stays below a megabyte.
_MAX_FIGURES = 60
_LABELS = 6
_LABEL_WIDTH = 10


@dataclass(frozen=True)
class Bars:
    """A bar chart in pixels.

    Args:
        title: The column, and what was measured of it.
        drifts: Whether the column has drifted in it.
        bars: x, y, width, height and kind (`reference` or `window`) of each bar.
        x_ticks: Position and text.
        y_ticks: Position and text.
    """

    title: str
    drifts: bool
    bars: tuple[tuple[float, float, float, float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def render_drift(report: DriftReport) -> str:
    """Render a report as one self-contained HTML page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kfp_mindspore.steps.evaluation", "templates"), autoescape=True, undefined=StrictUndefined
    )
    drifting = {(test.column, test.measure) for test in report.tests if test.is_drift(report.significance)}
    shown = sorted(report.distributions, key=lambda one: (one.column, one.measure) not in drifting)
    return environment.get_template("drift.html.j2").render(
        report=report,
        tests=[
            (test, test.is_drift(report.significance))
            for test in sorted(report.tests, key=lambda test: (not test.is_drift(report.significance), test.adjusted))
        ],
        figures=[_build_bars(one, (one.column, one.measure) in drifting) for one in shown[:_MAX_FIGURES]],
        left=max(0, len(shown) - _MAX_FIGURES),
        start=_format_time(report.start),
        end=_format_time(report.end),
    )


def render_prometheus(report: DriftReport, name: str) -> str:
    """Return gauges in Prometheus' text format.

    Args:
        report: The report.
        name: The service's or the model's name, a label.
    """
    label = f'service="{_escape(name)}"'
    lines = _render_gauge(
        "detected", "1 where a column has drifted or the metric has fallen", {label: not report.passed}
    )
    lines += _render_gauge("columns", "Columns and predictions that have drifted", {label: len(report.drifted)})
    lines += _render_gauge("rows", "Rows of the window", {label: report.rows})
    by_test = {f"{label},{_describe_test(test)}": test for test in report.tests}
    lines += _render_gauge(
        "p_value", "p-value, corrected for all tests", {key: test.adjusted for key, test in by_test.items()}
    )
    lines += _render_gauge(
        "stability_index", "Population stability index", {key: test.effect for key, test in by_test.items()}
    )
    if (metric := report.metric) is not None:
        values = {"value": metric.value, "low": metric.low, "high": metric.high}
        values |= {} if metric.reference is None else {"reference": metric.reference}
        named = {f'{label},metric="{_escape(metric.name)}",bound="{bound}"': value for bound, value in values.items()}
        lines += _render_gauge("metric", "The metric of rows with later labels", named)
    return "\n".join(lines) + "\n"


def _render_gauge(name: str, text: str, values: dict[str, float]) -> list[str]:
    full = f"kfp_mindspore_drift_{name}"
    return [
        f"# HELP {full} {text}.",
        f"# TYPE {full} gauge",
        *(f"{full}{{{labels}}} {float(value):g}" for labels, value in values.items()),
    ]


def _describe_test(test: DriftTest) -> str:
    return f'column="{_escape(test.column)}",measure="{_escape(test.measure)}",test="{test.test}"'


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _build_bars(distribution: Distribution, drifts: bool) -> Bars:
    pairs = (distribution.reference, distribution.window)
    axis = build_axis(0.0, max((*distribution.reference, *distribution.window, 0.01)))
    count = max(len(distribution.labels), 1)
    step = (RIGHT - LEFT) / count

    def place(share: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * share / axis.high, 1)

    bars = [
        (round(LEFT + step * (index + 0.08 + 0.42 * side), 1), place(share), round(step * 0.42, 1), kind)
        for side, kind in enumerate(("reference", "window"))
        for index, share in enumerate(pairs[side])
    ]
    every = max(1, math.ceil(count / _LABELS))
    title = distribution.column + ("" if distribution.measure == "value" else f": {distribution.measure}")
    return Bars(
        title,
        drifts,
        tuple((x, y, width, round(BOTTOM - y, 1), kind) for x, y, width, kind in bars),
        tuple(
            (round(LEFT + step * (index + 0.5), 1), _shorten(distribution.labels[index]))
            for index in range(0, len(distribution.labels), every)
        ),
        tuple((place(value), text) for value, text in axis.ticks),
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _LABEL_WIDTH else text[: _LABEL_WIDTH - 1] + "…"


def _format_time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
