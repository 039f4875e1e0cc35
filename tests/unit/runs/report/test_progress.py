from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.runs.report.progress import ProgressDisplay, describe_event
from kfp_mindspore.runs.report.result import RunResult, StepResult


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"epoch": 3, "epochs": 20, "loss": 0.41234}, "epoch 3/20, loss 0.4123"),
        (
            {"epoch": 1, "step": 10, "steps": 50, "metrics": {"eval_loss": 0.5, "accuracy": 0.9}},
            "epoch 1, step 10/50, accuracy 0.9000",
        ),
        ({"loss": None, "metrics": {"confusion": [[1]]}}, ""),
    ],
)
def test_progress_is_formatted(event: dict[str, Any], expected: str) -> None:
    assert describe_event(event) == expected


def show(stream: io.StringIO, *, bar: bool) -> str:
    run = RunResult(id="r", pipeline="p", directory=Path())
    run.steps = {name: StepResult(name) for name in ("train", "evaluate", "deploy")}
    with ProgressDisplay(stream, bar=bar) as display:
        run.steps["train"].state = "running"
        display(run, [])
        for step in (10, 20, 30):
            event = {"kind": "progress", "task": "train", "step": step, "steps": 30, "epoch": step // 10, "loss": 0.5}
            display(run, [event])
        run.steps["train"].state, run.steps["train"].seconds = "succeeded", 2.5
        display(run, [])
        run.steps["evaluate"].state, run.steps["evaluate"].outputs = "cached", {"accuracy": 0.97}
        run.steps["deploy"].state = "skipped"
        display(run, [])
    return stream.getvalue()


def test_plain_lines_without_terminal() -> None:
    assert show(io.StringIO(), bar=False).splitlines() == [
        "[1/3] train: started",
        "train: epoch 1, step 10/30, loss 0.5000",
        "train: epoch 3, step 30/30, loss 0.5000",
        "[1/3] train: succeeded in 2.5 s",
        "[2/3] evaluate: cached in 0.0 s, accuracy 0.97",
        "[3/3] deploy: skipped",
    ]


def test_bar_leaves_one_line_per_step() -> None:
    text = show(io.StringIO(), bar=True)
    assert "✓" in text
    assert "train" in text
    assert "accuracy 0.97" in text
    assert "[1/3] train: started" not in text


def test_long_results_wrap_within_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    run = RunResult(id="r", pipeline="p", directory=Path())
    outputs = {"url": "http://127.0.0.1:34567", "verdict": "version 1 serves; 32 samples tested", "label": "seven"}
    run.steps = {"deploy": StepResult("deploy", "succeeded", 2.5, outputs=outputs)}
    with ProgressDisplay(stream, bar=True) as display:
        display(run, [])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "…" not in text
    assert {"http://127.0.0.1:34567,", "serves;", "tested,", "seven"} <= set(text.split())
    assert all(len(line) <= 60 for line in text.replace("\r", "\n").splitlines())
