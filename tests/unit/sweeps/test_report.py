"""Reports on sweeps: which trial is the best, the table's cells, and plots of any space."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore import files
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.report import describe_trial, rank_trials, render_report, render_table, select_histories
from kfp_mindspore.sweeps.study import SweepResult, TrialResult, open_study

SPACE = [
    ["optimizer", {"choices": ["Adam", "SGD"]}],
    ["rate", {"low": 0.001, "high": 0.1, "log": True}],
    ["momentum", {"low": 0.0, "high": 0.9, "when": {"optimizer": "SGD"}}],
]
ADAM, SGD = {"optimizer": "Adam", "rate": 0.01}, {"optimizer": "SGD", "rate": 0.1, "momentum": 0.9}


def make_trial(number: int, state: str, value: float | None, **further: Any) -> TrialResult:
    values = {"loss": value} if state == "complete" and value is not None else {}
    given = {"parameters": ADAM, "epochs": 3, "seconds": 1.5, "reason": "", "output": "none", "values": values}
    return TrialResult(number=number, state=state, value=value, **{**given, **further})


def make_sweep(
    directory: Path, *trials: TrialResult, space: list[Any] = SPACE, is_maximized: bool = False, **options: Any
) -> SweepResult:
    built = SweepOptions(objective="loss", direction="maximize" if is_maximized else "minimize", **options)
    files.write_json(directory / "sweep.json", {"options": vars(built), "space": space, "template": {}})
    open_study(directory, built)
    return SweepResult(directory, "loss", is_maximized, trials, built.directions)


@pytest.mark.parametrize(
    ("is_maximized", "numbers"),
    [(False, [2, 1, 3, 0]), (True, [0, 1, 3, 2])],
)
def test_trials_are_ranked_by_value_and_number(is_maximized: bool, numbers: list[int], tmp_path: Path) -> None:
    found = make_sweep(
        tmp_path,
        *(make_trial(number, "complete", value) for number, value in enumerate([0.9, 0.0, -0.5, 0.0])),
        make_trial(4, "failed", None),
        is_maximized=is_maximized,
    )
    assert [trial.number for trial in rank_trials(found)] == numbers


@pytest.mark.parametrize("state", ["pruned", "failed", "running"])
def test_best_of_report_is_best_of_sweep(state: str, tmp_path: Path) -> None:
    """A trial that diverged or was stopped may have had a better epoch."""
    found = make_sweep(tmp_path, make_trial(0, state, 0.125), make_trial(1, "complete", 0.25))
    assert found.best.number == 1
    page = render_report(found)
    assert re.findall(r"<h2>Best: trial (\d+), loss ([\d.]+)", page) == [("1", "0.25")]


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [make_trial(0, "running", None, seconds=None, epochs=0)],
        [make_trial(0, "failed", None, reason="<b>full</b>"), make_trial(1, "pruned", 0.5)],
    ],
    ids=["no trial", "running", "none complete"],
)
def test_report_without_complete_trial_names_no_best(trials: list[TrialResult], tmp_path: Path) -> None:
    page = render_report(make_sweep(tmp_path, *trials))
    assert "<h2>Best:" not in page
    # Texts of trials are no markup.
    assert "<b>full" not in page


@pytest.mark.parametrize(
    ("space", "parameters"),
    [
        pytest.param([["x", {"choices": [1]}]], {"x": 1}, id="one choice"),
        pytest.param([["x", {"choices": [True, False]}]], {"x": False}, id="booleans"),
        pytest.param([["x", {"choices": ["a", None]}]], {"x": None}, id="null"),
        pytest.param([["x", {"low": 1, "high": 64, "log": True}]], {"x": 8}, id="logarithmic integers"),
        pytest.param([["x", {"low": -1.0, "high": 1.0}]], {"x": -1.0}, id="below zero"),
        pytest.param([["x", {"choices": ["<i>"]}]], {"x": "<i>"}, id="markup"),
    ],
)
def test_points_of_any_parameter_are_in_plot(space: list[Any], parameters: dict[str, Any], tmp_path: Path) -> None:
    # Equal values have an axis too.
    trials = [make_trial(number, "complete", 0.5, parameters=parameters) for number in range(2)]
    page = render_report(make_sweep(tmp_path, *trials, space=space))
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle[^>]* cx="([-\d.]+)" cy="([-\d.]+)"', page)]
    assert len(places) == 2
    assert all(0 <= x <= 480 and 0 <= y <= 240 for x, y in places)
    assert "<i>" not in page


def test_report_marks_front_of_further_objective(tmp_path: Path) -> None:
    points = [(0.1, 9.0), (0.2, 3.0), (0.3, 5.0)]
    trials = [
        make_trial(number, "complete", loss, values={"loss": loss, "latency": latency})
        for number, (loss, latency) in enumerate(points)
    ]
    page = render_report(make_sweep(tmp_path, *trials, objectives=["latency:minimize"]))
    marked = re.findall(r'<circle class="best"[^>]*><title>trial (\d)', page)
    assert marked == ["0", "1"]


def test_spread_over_seeds_is_in_report(tmp_path: Path) -> None:
    page = render_report(make_sweep(tmp_path, make_trial(0, "complete", 0.5, spread=0.0125), seeds=2))
    assert "± 0.013 over the seeds" in page or "± 0.012 over the seeds" in page


def test_table_has_measured_trials_first_and_one_line_for_each(tmp_path: Path) -> None:
    found = make_sweep(
        tmp_path,
        make_trial(0, "failed", None, reason="shape (a | b)\nis   wrong", seconds=None, epochs=0),
        make_trial(1, "complete", 0.123456, parameters=SGD),
        make_trial(2, "pruned", 0.05),
    )
    assert render_table(found).splitlines() == [
        "| trial | state | loss | epochs | seconds | optimizer | rate | momentum | reason |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 1 | complete | 0.1235 | 3 | 1.5 | SGD | 0.1 | 0.9 |  |",
        "| 2 | pruned | 0.05 | 3 | 1.5 | Adam | 0.01 |  |  |",
        "| 0 | failed |  | 0 |  | Adam | 0.01 |  | shape (a \\| b) is wrong |",
    ]


def test_table_escapes_parameters(tmp_path: Path) -> None:
    space = [["layers", {"choices": ["conv|pool", "conv\npool"]}]]
    trials = [make_trial(0, "complete", 0.5, parameters={"layers": "conv|pool"})]
    trials.append(make_trial(1, "complete", 0.6, parameters={"layers": "conv\npool"}))
    rows = render_table(make_sweep(tmp_path, *trials, space=space)).splitlines()
    assert rows[2:] == [
        "| 0 | complete | 0.5 | 3 | 1.5 | conv\\|pool |  |",
        "| 1 | complete | 0.6 | 3 | 1.5 | conv pool |  |",
    ]


@pytest.mark.parametrize(
    ("trial", "line"),
    [
        (make_trial(0, "complete", 0.123456), "trial 0 complete 0.1235 after 3 epochs, optimizer=Adam, rate=0.01"),
        (
            make_trial(1, "failed", None, epochs=0, reason="no memory\ntrace", parameters={"x": True}),
            "trial 1 failed after 0 epochs, x=True: no memory",
        ),
    ],
)
def test_ended_trial_is_one_line(trial: TrialResult, line: str) -> None:
    assert describe_trial(trial) == line


def test_curves_are_those_of_best_trials(tmp_path: Path) -> None:
    trials = []
    for number in range(10):
        output = tmp_path / str(number)
        trials.append(make_trial(number, "complete", float(number), output=str(output)))
        # A killed trial's last line may be cut.
        lines = [json.dumps({"epoch": 1, "loss": float(number)}), '{"epoch": 2, "lo']
        if number != 1:
            files.write_text(output / METRICS_FILE, "\n".join(lines))
    found = select_histories(trials, None)
    assert list(found)[:2] == ["trial 0", "trial 2"]
    assert 2 <= len(found) < 10
    assert [record["loss"] for record in found["trial 2"]] == [2.0]
    given = {0: [{"epoch": 1, "loss": 7.0}], 3: []}
    assert select_histories(trials, given) == {"trial 0": given[0]}
