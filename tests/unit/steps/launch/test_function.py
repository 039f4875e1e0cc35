from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.options import to_json
from kfp_mindspore.steps.launch import function as function_module
from kfp_mindspore.steps.launch.function import launch_function


def work(value: int) -> int:
    return value


def get_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, retry: int) -> tuple[Any, ...]:
    """Return the arguments of the job that an attempt of the step launches."""
    logs = {"name": "executor-logs", "uri": f"s3://bucket/run/executor-logs-{retry}", "metadata": {}}
    executor_input = {
        "inputs": {"parameterValues": {"value": 3}},
        "outputs": {
            "artifacts": {"executor-logs": {"artifacts": [logs]}},
            "parameters": {"Output": {"outputFile": str(tmp_path / "Output")}},
            "outputFile": str(tmp_path / "output_metadata.json"),
        },
    }
    found: list[Any] = []

    def launch_job(*arguments: Any, **options: Any) -> None:
        found.append((arguments, options))
        raise InterruptedError

    monkeypatch.setattr(function_module, "launch_job", launch_job)
    monkeypatch.setattr(sys, "argv", ["step", "--executor_input", json.dumps(executor_input)])
    with pytest.raises(InterruptedError):
        launch_function(work, to_json(JobOptions(workers=2)))(value=3)
    (job,) = found
    return tuple(job)


def test_retry_of_step_launches_same_job(local_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = get_job(monkeypatch, tmp_path, 0)
    assert first == get_job(monkeypatch, tmp_path, 1)
    assert first[0][0] == str(tmp_path)
