from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.runs.report.result import Gate, RunResult, StepResult, get_gate
from kfp_mindspore.runs.report.tracker import RunTracker, sum_intervals


def track(tmp_path: Path, events: list[dict[str, Any]], tail: str = "") -> RunResult:
    file = tmp_path / "events.jsonl"
    base = {"time": 0.0, "task": "", "pid": 1, "name": ""}
    file.write_text("".join(json.dumps({**base, **event}) + "\n" for event in events) + tail)
    result = RunResult(id="run", pipeline="", directory=tmp_path)
    RunTracker(result, file, tmp_path / "logs").read(final=True)
    return result


def test_overlapping_spans_count_once(tmp_path: Path) -> None:
    spans = [
        ("begin", 1, 1.0), ("begin", 1, 1.5), ("begin", 2, 2.0), ("end", 1, 2.5), ("end", 1, 3.0), ("end", 2, 4.0)
    ]  # fmt: skip
    result = track(
        tmp_path,
        [
            {"kind": "plan", "name": "p", "steps": ["a", "b", "c", "d"], "arguments": {"x": 1}},
            {"kind": "task", "name": "a", "state": "running", "arguments": {"threshold": 0.5}},
            *({"kind": kind, "pid": pid, "time": time, "task": "a"} for kind, pid, time in spans),
            {"kind": "task", "name": "a", "state": "succeeded", "seconds": 5.0, "outputs": {"y": 2}},
            {"kind": "task", "name": "b", "state": "succeeded", "seconds": 2.0, "outputs": {}},
            {"kind": "task", "name": "c", "state": "running"},
        ],
        tail='{"kind": "tas',
    )
    steps = result.steps
    assert [step.state for step in steps.values()] == ["succeeded", "succeeded", "failed", "skipped"]
    assert steps["a"].body_seconds == pytest.approx(3.0)
    assert steps["a"].arguments == {"threshold": 0.5}
    assert steps["a"].outputs == {"y": 2}
    # Time outside a span is overhead.
    assert steps["b"].body_seconds == 0.0
    assert (result.pipeline, result.arguments) == ("p", {"x": 1})


def test_iterations_of_loop_are_summed(tmp_path: Path) -> None:
    task = {"kind": "task", "name": "a", "state": "succeeded", "seconds": 1.5, "outputs": {}}
    assert track(tmp_path, [task, task]).steps["a"].seconds == 3.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))))
def test_union_of_intervals(intervals: list[tuple[int, int]]) -> None:
    covered = {second for start, end in intervals for second in range(start, end)}
    assert sum_intervals(intervals) == len(covered)


@pytest.mark.parametrize(
    ("value", "threshold", "expected"),
    [
        (0.931, 0.95, "accuracy 0.931 is 0.019 below the threshold of 0.950"),
        (0.9721, 0.95, "accuracy 0.972 is 0.022 above the threshold of 0.950"),
        (0.94996, 0.95, "accuracy 0.94996 is 0.00004 below the threshold of 0.95000"),
        (0.95, 0.95, "accuracy 0.950 is 0.000 above the threshold of 0.950"),
        (None, 0.95, "evaluate: gate not met"),
    ],
)
def test_gate_description(value: float | None, threshold: float, expected: str) -> None:
    assert Gate("evaluate", "accuracy", value, threshold, False).describe() == expected


def test_gate_description_has_baseline() -> None:
    gate = Gate("evaluate", "rmse", 8.0, 7.0, False, "ridge regression 7")
    assert gate.describe() == "rmse 8.000 is 1.000 above the threshold of 7.000; baseline ridge regression 7"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (StepResult("s", "succeeded", outputs={"passed": True, "accuracy": 1}), Gate("s", "accuracy", 1.0, None, True)),
        (
            StepResult(
                "s", "cached", arguments={"metric": "f1", "threshold": 0.5}, outputs={"passed": False, "f1": 0.1}
            ),
            Gate("s", "f1", 0.1, 0.5, False),
        ),
        (
            StepResult(
                "s", "cached", arguments={"threshold": 5.0}, outputs={"passed": True, "metric": "rmse", "value": 4.0}
            ),
            Gate("s", "rmse", 4.0, 5.0, True),
        ),
        (
            StepResult(
                "s",
                "succeeded",
                arguments={"threshold": 9.0, "beat_baseline": True},
                outputs={
                    "passed": False,
                    "metric": "rmse",
                    "value": 8.0,
                    "baseline": "ridge regression",
                    "baseline_value": 7.0,
                    "metrics": {"uri": "m", "type": "system.Metrics", "metadata": {"rmse": 8.0, "threshold": 7.0}},
                },
            ),
            Gate("s", "rmse", 8.0, 7.0, False, "ridge regression 7"),
        ),
        (StepResult("s", "succeeded", outputs={"passed": "yes"}), None),
        (StepResult("s", "failed", outputs={"passed": False}), None),
    ],
)
def test_gate_requires_output_passed(step: StepResult, expected: Gate | None) -> None:
    assert get_gate(step) == expected


def test_step_description() -> None:
    outputs = {"accuracy": 0.98123, "passed": True, "images": 360, "url": "http://x", "long": "x" * 99, "none": None}
    assert StepResult("s", "succeeded", outputs=outputs).describe() == (
        "accuracy 0.9812, passed yes, images 360, url http://x"
    )
    evaluated = {"metric": "rmse", "value": 55.25, "passed": True, "samples": 89}
    assert StepResult("s", "succeeded", outputs=evaluated).describe() == "rmse 55.25, passed yes, samples 89"
    evaluated |= {"baseline": "ridge regression", "baseline_value": 57.0625}
    assert StepResult("s", "succeeded", outputs=evaluated).describe() == (
        "rmse 55.25, baseline ridge regression 57.06, passed yes, samples 89"
    )
    evaluated |= {"baseline": "", "baseline_value": 0.0}
    assert StepResult("s", "succeeded", outputs=evaluated).describe() == "rmse 55.25, passed yes, samples 89"
    refused = {"name": "digits", "version": -1, "deployed": False, "verdict": "not deployed: the gate is not met"}
    assert StepResult("s", "succeeded", outputs=refused).describe() == (
        "name digits, deployed no, verdict not deployed: the gate is not met"
    )
    swept = {"best_parameters": {"learning_rate": 0.012345, "layers": 3}, "best_value": 0.97}
    assert StepResult("s", "succeeded", outputs=swept).describe() == (
        "best_parameters learning_rate=0.01235 layers=3, best_value 0.97"
    )
    assert StepResult("s", "skipped").describe() == "skipped"
    metrics = {"uri": "/m", "type": "system.Metrics", "metadata": {"epoch": 3, "loss": 0.25, "accuracy": 0.5}}
    assert StepResult("s", "succeeded", outputs={"metrics": metrics}).describe() == "accuracy 0.5, loss 0.25"
