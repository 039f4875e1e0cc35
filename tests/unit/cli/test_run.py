from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_mindspore.cli import demo, main

STEPS = Path(__file__).parents[1] / "runs" / "samples" / "steps.py"
TOY = f"{STEPS}:toy_lifecycle"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_run_prints_table_and_report_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", TOY, "-p", "count=2"]) == 0
    output = capsys.readouterr().out
    assert "[2/5] train: started" in output
    assert "epoch 5/5, step 50/50, loss 0.2000" in output
    assert "STEP      SECONDS  RESULT" in output
    assert "http://127.0.0.1:8080 predicted 1 for a test sample with label 1." in output
    report = output.splitlines()[-2].removeprefix("Report: ")
    assert Path(report).is_file()

    assert main.run(["run", TOY, "-p", "count=2", "--json"]) == 0
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert {
        "metric",
        "value",
        "samples",
        "prediction",
        "label",
        "url",
        "max_abs_diff",
        "overhead_seconds",
    } <= value.keys()
    assert value["states"]["train"] == "cached"
    assert "cached in 0.0 s" in captured.err


def test_unmet_gate_prints_json_and_distance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", TOY, "-p", "accuracy=0.5", "--json"]) == 3
    captured = capsys.readouterr()
    value = json.loads(captured.out.splitlines()[-1])
    assert (value["state"], value["url"]) == ("refused", None)
    error = json.loads(captured.err.splitlines()[-1])["error"]
    assert error["message"] == "accuracy 0.500 is 0.450 below the threshold of 0.950"
    assert error["hint"].startswith("Skipped: serve, smoke.")


def test_failure_prints_last_lines_and_verbose_prints_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", f"{STEPS}:failing", "--verbose", "--no-cache"]) == 1
    captured = capsys.readouterr()
    assert "    wrote 1 values" in captured.out
    assert "  | about to fail\n  | no more paper\n" in captured.err
    assert "Traceback" not in captured.err


def test_invalid_argument_prints_only_error(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main.run(["run", TOY, "-p", "epochs=2"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: run of toy-lifecycle is invalid: epochs: no such parameter")


def test_demo_prints_prediction(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PIPELINE", TOY)
    assert main.run(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5].endswith("predicted 1 for a test sample with label 1.")
    assert lines[-3].startswith("Report: ")
    assert lines[-2] == "The service was stopped with the run; --keep keeps it running."
    assert lines[-1].startswith("Next: kfp-mindspore init ")
    assert main.run(["demo", "--keep"]) == 0
    assert "Stop it with: kfp-mindspore service stop" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume", "-p", "count=2"], "--resume: uses the run's own parameters and options"),
        (["--resume", "--keep"], "--resume: uses the run's own parameters and options"),
        (["--resume"], "has no run to resume"),
        (["--accept-changes"], "--accept-changes: needs --resume"),
    ],
)
def test_invalid_resume_is_refused(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main.run(["run", TOY, *options]) == 2
    assert message in capsys.readouterr().err
