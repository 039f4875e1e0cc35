"""Learning curves: one run, and several in one plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.curves import compute_curves, read_records, render_curves


def make_records(*losses: float, **metrics: float) -> list[dict[str, Any]]:
    return [
        {"epoch": epoch, "loss": loss, **({"validation": {"eval_loss": loss + 1, **metrics}} if metrics else {})}
        for epoch, loss in enumerate(losses, 1)
    ]


def list_series(charts: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {chart["title"]: [series["name"] for series in chart["series"]] for chart in charts}


def test_one_run_shows_training_beside_validation() -> None:
    charts = compute_curves({"a": make_records(3, 2, 1, accuracy=0.5)})

    assert list_series(charts) == {"Loss": ["training", "validation"], "accuracy": ["validation"]}
    assert [point["label"] for point in charts[0]["series"][1]["points"]] == ["4", "3", "2"]


def test_several_runs_have_a_line_each() -> None:
    charts = compute_curves({"a": make_records(3, 2, accuracy=0.5), "b": make_records(3, 2, 1), "c": make_records(1)})

    assert list_series(charts) == {"Loss": ["a", "b"], "accuracy": ["a"]}
    labels = {series["name"]: series["points"][-1]["label"] for series in charts[0]["series"]}
    assert labels == {"a": "3", "b": "1"}, "the validation loss, or the training loss without validation"


def test_lines_that_are_no_record_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"epoch": 1, "loss": 2}) + '\n[1]\n{"step": 3}\n{"epoch": 2, "lo')

    assert read_records(file) == [{"epoch": 1, "loss": 2}]


def test_page_escapes_names_and_needs_no_other_file() -> None:
    page = render_curves("Job <x>", {"<b>": make_records(3, 2, accuracy=0.5)})

    assert "Job &lt;x&gt;" in page
    assert "<b>" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize("records", [[], make_records(1)])
def test_run_without_a_curve_says_so(records: list[dict[str, Any]]) -> None:
    assert "A curve needs two epochs." in render_curves("Job", {"a": records})


def test_more_runs_than_colours_are_refused() -> None:
    with pytest.raises(UserError, match="at most 8 runs fit in one plot, got 9"):
        render_curves("Runs", {str(number): make_records(2, 1) for number in range(9)})
