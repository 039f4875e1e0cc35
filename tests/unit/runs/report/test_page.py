from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import GateNotMetError, ProcessFailedError
from kfp_mindspore.evaluation.chart import BOTTOM, LEFT, RIGHT, TOP, compute_chart
from kfp_mindspore.evaluation.curves import read_records
from kfp_mindspore.runs.report.page import get_confusion_matrix, get_sample, render_html, write_report
from kfp_mindspore.runs.report.result import RunResult, StepResult


class Page(HTMLParser):
    """Parses tags, checks that they are closed, and refuses external resources."""

    VOID = frozenset({"meta", "line", "rect", "circle", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert "src" not in dict(attrs), "the report must be self-contained"
        self.links += [str(value) for name, value in attrs if name == "href"]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(" ".join(data.split()))


def make_artifact(uri: Path, kind: str, **metadata: Any) -> dict[str, Any]:
    return {"uri": str(uri), "type": f"system.{kind}", "metadata": metadata}


@pytest.fixture
def result(tmp_path: Path) -> RunResult:
    model = tmp_path / "model"
    model.mkdir()
    (model / "metrics.jsonl").write_text(
        '{"epoch": 1, "loss": 2.0, "validation": {"eval_loss": 1.0, "accuracy": 0.5}}\n'
        '{"epoch": 2, "loss": 0.05, "validation": {"eval_loss": null, "accuracy": 0.9}}\nnot json\n'
    )
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    image = np.zeros((2, 1, 8, 8), np.float32)
    image[0, 0, 3, 4] = 1.0
    np.savez(bundle / "verified.npz", **{"input.image": image, "output.scores": np.zeros((2, 3)), "labels": [1, 2]})
    matrix = {
        "annotationSpecs": [{"displayName": name} for name in ("cat", "dog")],
        "rows": [{"row": [8.0, 2.0]}, {"row": [0.0, 10.0]}],
    }
    (tmp_path / "evaluation").write_text("<!DOCTYPE html><title>evaluation</title>")
    steps = [
        StepResult("train", "succeeded", 4.0, 3.0, outputs={"model": make_artifact(model, "Model")}),
        StepResult("export", "cached", 0.0, 0.0, outputs={"b": make_artifact(bundle, "Model"), "max_abs_diff": 1e-7}),
        StepResult(
            "evaluate",
            "succeeded",
            1.0,
            0.5,
            arguments={"threshold": 0.8},
            outputs={
                "metric": "accuracy",
                "value": 0.9,
                "baseline": "logistic regression",
                "baseline_value": 0.85,
                "passed": True,
                "samples": 20,
                "report": make_artifact(tmp_path / "evaluation", "HTML"),
                "other": make_artifact(tmp_path / "missing", "HTML"),
                "confusion": make_artifact(tmp_path / "c", "ClassificationMetrics", confusionMatrix=matrix),
            },
        ),
        StepResult("smoke", "succeeded", 1.0, 1.0, outputs={"prediction": "<b>cat", "label": "dog", "url": "http://x"}),
    ]
    return RunResult(
        id="toy-1",
        pipeline="toy & co",
        directory=tmp_path,
        state="succeeded",
        arguments={"epochs": 2},
        seconds=9.0,
        steps={step.name: step for step in steps},
        started=1.7e9,
    )


def test_report_shows_all_results(result: RunResult, tmp_path: Path) -> None:
    text = write_report(result, tmp_path / "report.html").read_text()
    page = Page(text)
    for word in (
        "toy & co:",
        "0.9000",
        "gate 0.8: passed, logistic regression 0.85",
        "20",
        "1.0e-07",
        "<b>cat",
        "epochs",
        "Confusion matrix",
    ):
        assert word in page.words, word
    assert "Rows: label. Columns: prediction. Held-out samples, 2 of 20 wrong." in page.words
    assert page.tags.count("svg") == 3
    assert page.tags.count("rect") == 64
    assert page.links == ["evaluate-report.html"]
    assert (tmp_path / "evaluate-report.html").read_text() == (tmp_path / "evaluation").read_text()
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text


def test_each_validation_metric_has_chart(result: RunResult, tmp_path: Path) -> None:
    records = [
        {"epoch": epoch, "loss": 8035.0 / epoch, "validation": {"loss": 9.0, "rmse": 57.2 - epoch, "r2": 0.1 * epoch}}
        for epoch in range(1, 101)
    ]
    (tmp_path / "model" / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    words = Page(render_html(result)).words
    assert [word for word in words if word in ("Loss", "rmse", "r2")] == ["Loss", "rmse", "r2"]
    for tick in ("2,500", "7,500", "100"):
        assert tick in words, tick


def test_report_of_failed_run_shows_last_lines(tmp_path: Path) -> None:
    run = RunResult(
        id="x", pipeline="p", directory=tmp_path, state="failed", steps={"a": StepResult("a", "failed", 1.0)}
    )
    run.error = ProcessFailedError("step a failed after 1.0 s", log=["one <script>", "two"], hint="Full log: x")
    page = Page(render_html(run))
    assert "one <script> two" in page.words
    assert "script" not in page.tags
    assert "white-space: pre-wrap; overflow-wrap: anywhere" in render_html(run), "long lines must not be cut"
    run.error, run.state = GateNotMetError("accuracy 0.1 is 0.8 below the threshold of 0.9"), "refused"
    assert "Gate not met" in Page(render_html(run)).words


def test_history_matrix_and_sample_are_read_from_artifacts(result: RunResult) -> None:
    assert [record["epoch"] for record in read_records(result.metrics_file)] == [1, 2]
    matrix = get_confusion_matrix(result)
    assert matrix is not None
    assert (matrix["total"], matrix["wrong"], matrix["labels"]) == (20, 2, ["cat", "dog"])
    sample = get_sample(result)
    assert sample is not None
    assert {"x": 4, "y": 3, "shade": 255} in sample["pixels"]
    empty = RunResult(id="x", pipeline="p", directory=result.directory)
    assert (empty.metrics_file, get_confusion_matrix(empty), get_sample(empty)) == (None, None, None)


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.one_of(st.none(), st.just(float("nan")), st.floats(-1e9, 1e9))),
        max_size=30,
    )
)
def test_points_and_ticks_are_inside_chart(points: list[tuple[int, float | None]]) -> None:
    chart = compute_chart("Loss", {"training": points})
    if chart is None:
        return
    for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", chart["series"][0]["path"]):
        assert LEFT <= float(x) <= RIGHT
        assert TOP <= float(y) <= BOTTOM
    assert all(TOP <= tick["at"] <= BOTTOM for tick in chart["y_ticks"])
    assert all(LEFT <= tick["at"] <= RIGHT for tick in chart["x_ticks"])
    assert 2 <= len(chart["y_ticks"]) <= 7
