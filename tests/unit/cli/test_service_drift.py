"""`kfp-mindspore service drift`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run

pytestmark = pytest.mark.mindspore


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of black images."""
    event = {"specversion": "1.0", "source": "x", "inferenceservicename": "digits"}
    event |= {"type": "org.kubeflow.serving.inference.request", "time": "2026-01-01T00:00:00Z"}
    body = {"instances": [[[[0.0] * 8] * 8]]}
    file = tmp_path / "log" / "events.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps({**event, "id": str(index), "data": body}) + "\n" for index in range(150)))
    return file.parent


def test_report_json_and_gate(lifecycle: Any, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["service", "drift", "--model", str(lifecycle.bundle), "--log", str(log)]
    assert run([*words, "--report", str(tmp_path / "a.html"), "--prometheus", str(tmp_path / "a.prom")]) == 0
    printed = capsys.readouterr().out
    assert "150 rows: drift in " in printed
    assert "not watched: confidence, label, prediction: the log has no responses" in printed
    assert "<h1>Drift in" in (tmp_path / "a.html").read_text()
    assert 'kfp_mindspore_drift_detected{service="bundle"} 1' in (tmp_path / "a.prom").read_text()
    assert run([*words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (value["rows"], value["passed"], value["model"]) == (150, False, str(lifecycle.bundle))
    assert run([*words, "--gate"]) == 3
    assert "Error: 150 rows: drift in" in capsys.readouterr().err
    assert run([*words, "--gate", "--effect", "100"]) == 0


def test_service_supplies_model(
    lifecycle: Any, log: Path, local_services: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    local_services.deploy()
    assert run(["service", "drift", "digits", "--backend", "local"]) == 2
    assert "service digits: has no log" in capsys.readouterr().err
    assert run(["service", "drift", "digits", "--backend", "local", "--log", str(log)]) == 2
    assert "has no statistics of its training data" in capsys.readouterr().err
    assert run(["service", "drift", "digits", "--log", str(log), "--model", str(lifecycle.bundle)]) == 0
    assert run(["service", "drift", "other", "--log", str(log), "--model", str(lifecycle.bundle)]) == 2
    assert "found 150 events of other services" in capsys.readouterr().err


def test_name_or_paths_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "drift"]) == 2
    assert "give NAME, or --model and --log" in capsys.readouterr().err
