"""A sweep's report: one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.evaluation.axes import build_axis
from kfp_mindspore.evaluation.chart import STYLES
from kfp_mindspore.evaluation.curves import Records, build_environment, compute_curves, read_records
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.space import Parameter, Space
from kfp_mindspore.sweeps.study import COMPLETE, SweepResult, TrialResult, compute_importances, read_description

_WIDTH, _HEIGHT, _MARGIN = 480, 240, 44
# The best trials have their curves in the report.
_CURVES = len(STYLES)


def render_report(result: SweepResult, histories: Mapping[int, Records] | None = None) -> str:
    """Return a sweep's report as HTML.

    It has the trials' table, parallel coordinates, each parameter's values beside the objective, the parameters'
    importance (Optuna's PED-ANOVA) and the best trials' learning curves.

    Args:
        result: The sweep, in any state.
        histories: Epochs by trial number; default those in the trials' output directories.
    """
    description = read_description(result.directory)
    space, options = Space(dict(description["space"])), SweepOptions(**description["options"])
    ranked = rank_trials(result)
    environment = build_environment(Path(__file__).with_name("templates"))
    return environment.get_template("sweep.html.j2").render(
        result=result,
        options=options,
        names=list(space.parameters),
        best=ranked[0] if ranked and ranked[0].state == COMPLETE else None,
        fronts=[_compute_front(name, result) for name in list(result.directions)[1:]],
        has_spread=any(trial.spread is not None for trial in result.trials),
        coordinates=_compute_coordinates(ranked, space, result.objective),
        slices=[_compute_slice(name, parameter, ranked) for name, parameter in space.parameters.items()],
        importances=compute_importances(result.directory),
        charts=compute_curves(select_histories(ranked, histories)),
        styles=STYLES,
        width=_WIDTH,
        height=_HEIGHT,
        margin=_MARGIN,
    )


def rank_trials(result: SweepResult) -> list[TrialResult]:
    """Return the trials that have a value: complete ones before others, then the best first."""
    measured = [trial for trial in result.trials if trial.value is not None]
    sign = -1 if result.is_maximized else 1
    # A trial that was pruned or diverged may have had a better epoch than the best one.
    return sorted(measured, key=lambda trial: (trial.state != COMPLETE, sign * (trial.value or 0.0)))


def select_histories(ranked: Sequence[TrialResult], histories: Mapping[int, Records] | None) -> dict[str, Records]:
    """Return the best trials' epochs by their names in charts."""
    best = ranked[:_CURVES]
    if histories is None:
        files = {trial.number: Path(trial.output, METRICS_FILE) for trial in best}
        histories = {number: read_records(file) for number, file in files.items() if file.is_file()}
    return {f"trial {trial.number}": histories[trial.number] for trial in best if histories.get(trial.number)}


def render_table(result: SweepResult) -> str:
    """Return the trials as a Markdown table in the order of `rank_trials`, then those without a value."""
    names = list(Space(dict(read_description(result.directory)["space"])).parameters)
    rows = [["trial", "state", result.objective, "epochs", "seconds", *names, "reason"]]
    rows.append(["---"] * len(rows[0]))
    ranked = rank_trials(result)
    for trial in [*ranked, *(trial for trial in result.trials if trial not in ranked)]:
        value = "" if trial.value is None else f"{trial.value:.4g}"
        texts = [_format(trial.parameters.get(name, "")) for name in names] + [trial.reason]
        cells = [" ".join(text.replace("|", "\\|").split()) for text in texts]
        rows.append([str(trial.number), trial.state, value, str(trial.epochs), str(trial.seconds or ""), *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def describe_trial(trial: TrialResult) -> str:
    """Return a trial that has ended as one line."""
    value = "" if trial.value is None else f" {trial.value:.4g}"
    reason = f": {trial.reason.partition(chr(10))[0]}" if trial.reason else ""
    parameters = describe_parameters(trial.parameters)
    return f"trial {trial.number} {trial.state}{value} after {trial.epochs} epochs, {parameters}{reason}"


def describe_parameters(parameters: Mapping[str, Any]) -> str:
    """Return parameters as `name=value, …`."""
    return ", ".join(f"{name}={_format(value)}" for name, value in parameters.items())


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _compute_coordinates(ranked: Sequence[TrialResult], space: Space, objective: str) -> dict[str, Any] | None:
    """Return a line a trial across the parameters' axes to the objective's, the best one last and on top."""
    if not ranked:
        return None
    values = [trial.value or 0.0 for trial in ranked]
    axis = build_axis(min(values), max(values))
    axes = [*space.parameters, objective]
    width = 2 * _WIDTH + 40

    def to_x(index: int) -> float:
        return round(_MARGIN + (width - 2 * _MARGIN) * index / max(len(axes) - 1, 1), 1)

    def to_y(fraction: float) -> float:
        return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * fraction, 1)

    lines = []
    for rank, trial in enumerate(ranked):
        points = [
            (to_x(index), to_y(_place(parameter, trial.parameters[name])))
            for index, (name, parameter) in enumerate(space.parameters.items())
            if name in trial.parameters
        ]
        points.append((to_x(len(axes) - 1), to_y(((trial.value or 0.0) - axis.low) / (axis.high - axis.low))))
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        lines.append({"path": path, "opacity": round(max(0.15, 0.9 - rank / len(ranked)), 2), "number": trial.number})
    ends = [(_describe_ends(parameter)) for parameter in space.parameters.values()]
    ends.append((f"{axis.low:.4g}", f"{axis.high:.4g}"))
    return {
        "width": width,
        "axes": [
            {"name": name, "x": to_x(index), "low": low, "high": high}
            for index, (name, (low, high)) in enumerate(zip(axes, ends, strict=True))
        ],
        "lines": lines[::-1],
    }


def _compute_front(name: str, result: SweepResult) -> dict[str, Any]:
    """Return each complete trial as a point, a further objective against the first, and mark the Pareto front."""
    front = {trial.number for trial in result.front}
    trials = [trial for trial in result.trials if name in trial.values]
    across = build_axis(*_get_ends([trial.values[name] for trial in trials]))
    places = [(trial.values[name] - across.low) / (across.high - across.low) for trial in trials]
    labels = [f"{trial.values[name]:.4g}" for trial in trials]
    plot = _compute_plot(name, (f"{across.low:.4g}", f"{across.high:.4g}"), trials, places, labels)
    for trial, point in zip(trials, plot["points"], strict=True):
        point["is_best"] = trial.number in front
    return plot


def _get_ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values, default=0.0), max(values, default=0.0)


def _compute_slice(name: str, parameter: Parameter, trials: Sequence[TrialResult]) -> dict[str, Any]:
    """Return a point a trial: the parameter's value and the objective."""
    used = [trial for trial in trials if name in trial.parameters]
    places = [_place(parameter, trial.parameters[name]) for trial in used]
    return _compute_plot(name, _describe_ends(parameter), used, places, [str(trial.parameters[name]) for trial in used])


def _compute_plot(
    name: str, ends: tuple[str, str], trials: Sequence[TrialResult], places: Sequence[float], labels: Sequence[str]
) -> dict[str, Any]:
    """Return a plot of the objective above places on a horizontal axis, 0 to 1."""
    axis = build_axis(*_get_ends([trial.value or 0.0 for trial in trials]))

    def to_y(value: float) -> float:
        return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - axis.low) / (axis.high - axis.low), 1)

    return {
        "name": name,
        "low": ends[0],
        "high": ends[1],
        "ticks": [{"at": to_y(value), "label": text} for value, text in axis.ticks],
        "points": [
            {
                "x": round(_MARGIN + (_WIDTH - 2 * _MARGIN) * place, 1),
                "y": to_y(trial.value or 0.0),
                "label": f"trial {trial.number}: {label}, {trial.value:.4g}",
                "is_best": False,
            }
            for trial, place, label in zip(trials, places, labels, strict=True)
        ],
    }


def _place(parameter: Parameter, value: Any) -> float:
    """Return where on the parameter's axis a value is, 0 to 1."""
    if parameter.choices is not None:
        return parameter.choices.index(value) / max(len(parameter.choices) - 1, 1)
    low, high = parameter.low or 0.0, parameter.high or 0.0
    if parameter.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return float((value - low) / (high - low))


def _describe_ends(parameter: Parameter) -> tuple[str, str]:
    if parameter.choices is not None:
        return str(parameter.choices[0]), str(parameter.choices[-1])
    return f"{parameter.low:.4g}", f"{parameter.high:.4g}"
