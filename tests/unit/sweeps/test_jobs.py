"""A cluster's trials: epochs from the progress in a job's status."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.msjob.api.status import ProgressMetric, TrainingProgress
from kfp_mindspore.sweeps.jobs import to_records


@pytest.mark.parametrize(
    ("step", "records"),
    [
        (9, []),
        (10, [{"epoch": 1, "validation": {"accuracy": 0.5}, "loss": 0.25}]),
        # The loss belongs to the epoch that is not complete.
        (19, [{"epoch": 1, "validation": {"accuracy": 0.5}}]),
        (40, [{"epoch": 4, "validation": {"accuracy": 0.5}, "loss": 0.25}]),
    ],
)
def test_progress_has_last_complete_epoch(step: int, records: list[dict[str, Any]]) -> None:
    metrics = [ProgressMetric("accuracy", "0.5"), ProgressMetric("loss", "0.25"), ProgressMetric("state", "good")]
    assert to_records(TrainingProgress(step=step, steps=40, epochs=4, metrics=metrics)) == records


def test_progress_without_counts_has_no_epoch() -> None:
    assert to_records(None) == to_records(TrainingProgress(45)) == []
