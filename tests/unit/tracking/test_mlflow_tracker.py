"""MLflow runs in a store of files: the points' order and names, resumes, and stores that cannot be reached."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from kfp_mindspore.tracking import mlflow_tracker
from kfp_mindspore.tracking.mlflow_tracker import MlflowTracker, tag_run

Points = Iterable[tuple[int, Mapping[str, float]]]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store and experiment of the test; the waits are short where nothing answers."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "KFP_MINDSPORE_MLFLOW_PARENT_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "store"


def list_runs() -> list[Any]:
    client = MlflowClient()
    experiment = client.get_experiment_by_name("digits")
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))


def read(run: Any, name: str) -> list[tuple[int, float]]:
    history = MlflowClient().get_metric_history(run.info.run_id, name)
    return sorted((metric.step, metric.value) for metric in history)


def train(
    points: Points, *, state: Any = None, parameters: Mapping[str, Any] | None = None, status: str = "FINISHED"
) -> MlflowTracker:
    tracker = MlflowTracker("s3://bucket/checkpoints")
    tracker.begin(parameters or {}, state, 0)
    for step, values in points:
        tracker.log(step, values)
    tracker.end(status, {"checkpoint": "s3://bucket/output"})
    return tracker


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_run_has_all_points_at_its_end(status: str) -> None:
    train(((step, {"loss": 1 / step, "step_loss": 0.5}) for step in range(1, 1001)), status=status)
    (run,) = list_runs()
    assert run.info.status == status
    assert read(run, "loss") == [(step, 1 / step) for step in range(1, 1001)]
    assert len(read(run, "step_loss")) == 1000
    assert run.data.tags["checkpoint"] == "s3://bucket/output"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("top@5", "top_5"),
        ("f1[cat]", "f1_cat_"),
        ("größe", "größe"),
        ("a/b: c-d.e", "a/b: c-d.e"),
        ("/loss", "_loss"),
        ("a//b", "a__b"),
        ("../loss", "_._loss"),
        ("x" * 300, "x" * 250),
    ],
)
def test_name_that_mlflow_refuses_is_changed_and_other_points_are_kept(name: str, key: str) -> None:
    train([(1, {"loss": 0.5, name: 0.25}), (2, {"loss": 0.125})], parameters={name: 3})
    (run,) = list_runs()
    assert run.info.status == "FINISHED"
    assert read(run, "loss") == [(1, 0.5), (2, 0.125)]
    assert read(run, key) == [(1, 0.25)]
    assert run.data.params == {key: "3"}


def test_long_parameters_are_shortened() -> None:
    train([], parameters={"epochs": 4, "text": "x" * 7000})
    assert list_runs()[0].data.params == {"epochs": "4", "text": "x" * 6000}


def test_resumed_training_continues_its_run_without_points_twice() -> None:
    """Points behind the checkpoint are computed again, those in it were not yet sent."""
    train([(1, {"loss": 0.5}), (2, {"loss": 0.25})], parameters={"epochs": 2}, status="KILLED")
    (run,) = list_runs()
    state = {"run_id": run.info.run_id, "points": [[2, {"loss": 9.0}, 1], [2, {"accuracy": 0.75}, 1]]}
    train([(2, {"loss": 9.0}), (3, {"loss": 0.125})], state=state, parameters={"epochs": 4})

    (resumed,) = list_runs()
    assert (resumed.info.run_id, resumed.info.status) == (run.info.run_id, "FINISHED")
    assert read(resumed, "loss") == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert read(resumed, "accuracy") == [(2, 0.75)]
    # MLflow's parameters cannot be changed.
    assert resumed.data.params == {"epochs": "2"}


def test_run_of_pipeline_is_not_ended_by_training(monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient()
    given = client.create_run(client.create_experiment("digits"))
    monkeypatch.setenv("MLFLOW_RUN_ID", given.info.run_id)
    train([(1, {"loss": 0.5})])
    (run,) = list_runs()
    assert (run.info.run_id, run.info.status) == (given.info.run_id, "RUNNING")
    assert read(run, "loss") == [(1, 0.5)]


def test_new_run_is_nested_in_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_MLFLOW_PARENT_RUN_ID", "parent")
    train([])
    assert list_runs()[0].data.tags["mlflow.parentRunId"] == "parent"


def test_points_of_unreachable_server_are_counted_and_kept_for_checkpoint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mlflow_tracker, "DOWN_SECONDS", 0.5)
    tracker = MlflowTracker(None)
    tracker.begin({}, None, 0)
    tracker.log(1, {"loss": 0.5})
    tracker.log(2, {"loss": 0.25})
    state = tracker.read_state()
    assert state["run_id"] == ""
    assert [(step, values) for step, values, _ in state["points"]] == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
    with caplog.at_level(logging.WARNING):
        tracker.end("FAILED", {})
    assert "MLflow has not received 2 of the training's points" in caplog.text
    assert "metrics.jsonl has every epoch" in caplog.text
    # Its last request would log into another test.
    for thread in [thread for thread in threading.enumerate() if thread.name == "mlflow"]:
        thread.join(60)


def test_full_queue_drops_step_losses_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_tracker, "WAITING_POINTS", 2)
    tracker = MlflowTracker(None)
    for step in range(1, 5):
        tracker.log(step, {"step_loss": 0.5})
    tracker.log(4, {"loss": 0.25})
    assert [(step, list(values)) for step, values, _ in tracker.read_state()["points"]] == [
        (1, ["step_loss"]),
        (2, ["step_loss"]),
        (4, ["loss"]),
    ]


def test_tags_of_run_are_set_or_their_loss_is_named(caplog: pytest.LogCaptureFixture) -> None:
    train([])
    (run,) = list_runs()
    tag_run(run.info.run_id, {"bundle": "s3://bucket/bundle"})
    assert list_runs()[0].data.tags["bundle"] == "s3://bucket/bundle"
    with caplog.at_level(logging.WARNING):
        tag_run("0" * 32, {"bundle": "b", "service": "s"})
    assert f"MLflow run {'0' * 32} has no tags bundle, service" in caplog.text
