"""TensorBoard event files: which points are read after an interruption, and what is on the disk when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kfp_mindspore.tracking.tensorboard_tracker import TensorBoardTracker

PARAMETERS = {"epochs": 4, "optimizer": "Adam"}


def read(directory: Path, name: str = "loss") -> list[tuple[int, float]]:
    """Return a curve as TensorBoard reads it."""
    events = EventAccumulator(str(directory), {"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def train(directory: Path, start: int, points: Mapping[int, float], *, is_ended: bool = True) -> TensorBoardTracker:
    """Log points as a training that begins or resumes at a step; one that is killed writes its last checkpoint."""
    tracker = TensorBoardTracker(directory)
    tracker.begin(PARAMETERS, {} if start else None, start)
    for step, value in points.items():
        tracker.log(step, {"loss": value})
    if is_ended:
        tracker.end("FINISHED", {"checkpoint": "output"})
    else:
        assert tracker.read_state() == {}
    return tracker


def test_points_are_read_in_order(tmp_path: Path) -> None:
    train(tmp_path / "new" / "folder", 0, {1: 0.5, 2: 0.25, 10: 0.125})
    assert read(tmp_path / "new" / "folder") == [(1, 0.5), (2, 0.25), (10, 0.125)]


@pytest.mark.parametrize(
    ("resumed_at", "expected"),
    [
        pytest.param(2, [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25)], id="before the last point"),
        pytest.param(3, [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.25)], id="at the last point"),
    ],
)
def test_resumed_training_replaces_later_points(
    resumed_at: int, expected: list[tuple[int, float]], tmp_path: Path
) -> None:
    train(tmp_path, 0, dict.fromkeys((1, 2, 3), 0.5), is_ended=False)
    train(tmp_path, resumed_at, dict.fromkeys(range(resumed_at + 1, 5), 0.25))
    assert read(tmp_path) == expected


def test_checkpoint_has_all_points_on_disk(tmp_path: Path) -> None:
    """The process may be killed after it: nobody closes the file."""
    tracker = train(tmp_path, 0, {1: 0.5, 2: 0.25}, is_ended=False)
    assert read(tmp_path) == [(1, 0.5), (2, 0.25)]
    tracker.end("KILLED", {})


def test_parameters_are_a_table_of_new_training_only(tmp_path: Path) -> None:
    train(tmp_path / "new", 0, {1: 0.5})
    (tensor,) = EventAccumulator(str(tmp_path / "new")).Reload().Tensors("parameters/text_summary")
    text = tensor.tensor_proto.string_val[0].decode()
    assert text.splitlines() == ["| parameter | value |", "|---|---|", "| epochs | 4 |", "| optimizer | Adam |"]

    train(tmp_path / "resumed", 7, {8: 0.5})
    assert EventAccumulator(str(tmp_path / "resumed")).Reload().Tags()["tensors"] == []
