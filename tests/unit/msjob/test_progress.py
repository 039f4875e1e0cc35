"""Progress reports in the log of a job's own process."""

from __future__ import annotations

import json

import pytest

from kfp_mindspore.msjob.api.status import ProgressMetric, TrainingProgress
from kfp_mindspore.msjob.progress import format_line, parse_progress, read_last_progress

METRIC = {"name": "loss", "value": "0.31"}


@pytest.mark.parametrize(
    ("report", "progress"),
    [
        ({"percentage": 45, "metrics": [METRIC]}, TrainingProgress(45, metrics=[ProgressMetric("loss", "0.31")])),
        (
            {"step": 3, "steps": 9, "estimatedRemainingSeconds": 60, "note": "x"},
            TrainingProgress(None, None, None, 3, 9, 60),
        ),
        ({}, TrainingProgress()),
        ({"percentage": 101}, None),
        ({"percentage": -1}, None),
        ({"percentage": "45"}, None),
        ({"percentage": 4.5}, None),
        ({"percentage": True}, None),
        ({"step": 10**30}, None),
        ({"metrics": [METRIC] * 51}, None),
        ({"metrics": [{"name": "loss", "value": 0.31}]}, None),
        ({"metrics": [{"name": "loss"}]}, None),
        ({"metrics": [{"name": "n" * 101, "value": "1"}]}, None),
        ({"metrics": {"loss": 1}}, None),
        ({"percentage": 45, "device": "Ascend"}, TrainingProgress(45, device="Ascend")),
        ({"percentage": 45, "device": 910}, None),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_reports_that_api_server_would_refuse_are_ignored(report: object, progress: TrainingProgress | None) -> None:
    assert parse_progress(json.dumps(report)) == progress


def test_newest_valid_report_of_log_counts() -> None:
    prefix = "KFP_MINDSPORE_PROGRESS "
    lines = ["epoch 1", prefix + '{"percentage": 1}', prefix + '{"percentage": 2}', prefix + '{"perc', "epoch 2"]
    assert read_last_progress(lines) == TrainingProgress(2)
    assert read_last_progress(lines[:1]) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            'KFP_MINDSPORE_PROGRESS {"percentage": 45, "epoch": 5, "epochs": 10, "estimatedRemainingSeconds": 90, '
            '"device": "CPU", "metrics": [{"name": "loss", "value": "0.31"}]}',
            "progress: 45 %, epoch 5/10, about 0:01:30 left, device CPU, loss 0.31",
        ),
        ("epoch 5/10: loss 0.31", "epoch 5/10: loss 0.31"),
        ('KFP_MINDSPORE_PROGRESS {"perc', 'KFP_MINDSPORE_PROGRESS {"perc'),
    ],
)
def test_reports_in_log_become_text(line: str, text: str) -> None:
    assert format_line(line) == text
