"""A cluster's trials: epochs from the progress in a job's status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.msjob.api.status import ProgressMetric, TrainingProgress
from kfp_mindspore.sweeps.jobs import to_records
from tests.support.kube.fake_api_server import FakeApiServer, send_json
from tests.support.kube.queues import put_queue


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


def test_trials_of_command_line_are_queued(
    api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    created: list[dict[str, Any]] = []

    def fail_job(request: Any, handler: Any) -> bool:
        if (request.method, request.path) != ("POST", MSJOBS.get_path("team")):
            return False
        created.append(request.body)
        condition = {"type": "Failed", "status": "True", "reason": "Because", "message": "It has failed."}
        send_json(handler, 201, api.put(request.path, {**request.body, "status": {"conditions": [condition]}}))
        return True

    api.faults.append(fail_job)
    put_queue(api)
    monkeypatch.setenv("KFP_MINDSPORE_IMAGE", "example.com/train:1")
    (tmp_path / "space.yaml").write_text("x: [1]\n")
    words = ["--script", "train.py", "--objective", "loss", "--trials", "1", "--space", str(tmp_path / "space.yaml")]
    cluster = ["--backend", "kubernetes", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "config")), "-n", "team"]
    queue = ["--queue", "research", "--queue-priority", "urgent"]
    assert run(["sweep", "run", str(tmp_path / "sweep"), *words, "--output", "/out", *cluster, *queue]) == 1
    assert "It has failed" in capsys.readouterr().err
    assert [document["metadata"]["labels"] for document in created] == [
        {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "urgent"}
    ]
