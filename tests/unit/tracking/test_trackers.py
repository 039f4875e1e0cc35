"""Trackers: which are opened, and what they are given."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.tracking.tracker import TrackerState
from kfp_mindspore.tracking.trackers import Trackers, open_trackers
from kfp_mindspore.training import TrainingConfig


class Recorder:
    """Records what it is given."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.ended: tuple[str, dict[str, str]] | None = None

    def begin(self, parameters: Mapping[str, Any], state: TrackerState | None, step: int) -> None:
        self.state = state

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.points.append((step, dict(values)))

    def read_state(self) -> TrackerState:
        return {"points": len(self.points)}

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        self.ended = (status, dict(tags))


@pytest.mark.parametrize(
    ("steps", "logged"),
    [
        pytest.param(5, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], id="each step"),
        pytest.param(200, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], id="as many as points"),
        pytest.param(201, [2, 4, 6, 8, 10], id="every second"),
        pytest.param(1000, [5, 10], id="every fifth"),
    ],
)
def test_long_epochs_have_fewer_points(steps: int, logged: list[int]) -> None:
    recorder = Recorder()
    with Trackers({"recorder": recorder}) as trackers:
        trackers.begin({}, None, 0)
        trackers.log_steps([0.5] * 4, 4, steps)
        trackers.log_steps([0.5] * 6, 10, steps)

    assert [step for step, _ in recorder.points] == logged


def test_epoch_is_logged_at_its_last_step() -> None:
    recorder = Recorder()
    record = {
        "epoch": 2,
        "step": 72,
        "loss": 0.5,
        "learning_rate": [0.1, 0.2],
        "samples_per_second": 10.0,
        "validation": {"accuracy": 0.9, "confusion": [[1, 0], [0, 1]]},
        "seconds": {},
    }
    with Trackers({"recorder": recorder}) as trackers:
        trackers.begin({}, {"recorder": {"points": 3}}, 36)
        trackers.log_epoch(record)
        trackers.tag("checkpoint", Path("output/checkpoint"))
        assert trackers.read_states() == {"recorder": {"points": 1}}

    values = {"epoch": 2, "loss": 0.5, "learning_rate": 0.1, "samples_per_second": 10.0, "accuracy": 0.9}
    assert recorder.points == [(72, values)]
    assert recorder.state == {"points": 3}
    assert recorder.ended == ("FINISHED", {"checkpoint": "output/checkpoint"})


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("wrong"), "FAILED"), (SystemExit(143), "KILLED"), (KeyboardInterrupt(), "KILLED")]
)
def test_error_ends_runs(error: BaseException, status: str) -> None:
    recorder = Recorder()
    trackers = Trackers({"recorder": recorder})
    trackers.begin({}, None, 0)
    with pytest.raises(type(error)), trackers:
        raise error

    assert recorder.ended == (status, {})


@pytest.mark.parametrize(
    ("names", "missing", "message"),
    [
        (["mlflow"], "", "trackers: mlflow needs MLFLOW_TRACKING_URI, which is not set"),
        (["mlflow"], "mlflow", "trackers: mlflow needs the package mlflow, which is not installed"),
        (
            ["tensorboard"],
            "tensorboardX",
            "trackers: tensorboard needs the package tensorboardX, which is not installed",
        ),
        (["tensorboard"], "", "trackers: tensorboard has no directory to write to"),
    ],
)
def test_tracker_that_cannot_log_is_refused(
    names: list[str], missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))

    with pytest.raises(UserError) as caught:
        open_trackers(names, None, None)

    assert message in str(caught.value)
    assert caught.value.hint


def test_missing_client_is_a_warning_where_only_the_variable_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        trackers = open_trackers(None, None, None)

    assert trackers.read_states() == {}
    assert "pip install 'kfp-mindspore[mlflow]'" in caplog.text


def test_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match=r"trackers: unknown 'tensorbord'.*tensorboard"):
        TrainingConfig(trackers=["tensorbord"])
