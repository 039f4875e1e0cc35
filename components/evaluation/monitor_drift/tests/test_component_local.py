import json
from pathlib import Path

import pytest
from kfp import dsl

from ..component import monitor_drift

pytest_plugins = ["kfp_mindspore.testing"]


def test_drift_is_output_and_step_succeeds(run_component, lifecycle, tmp_path) -> None:
    """A drift is an output, and the step succeeds."""
    log = tmp_path / "log.jsonl"
    event = {"specversion": "1.0", "source": "x", "type": "org.kubeflow.serving.inference.request"}
    with log.open("w") as stream:
        for index in range(200):
            image = [[[0.0] * 8] * 8]
            stream.write(json.dumps({**event, "id": str(index), "data": {"instances": [image]}}) + "\n")
    outputs = run_component(monitor_drift, {"model": (dsl.Model, lifecycle.bundle)}, log=str(log))
    assert outputs.parameters["passed"] is False
    assert outputs.parameters["rows"] == 200
    assert len(outputs.parameters["drifted"]) == 1
    assert "<h1>Drift in" in Path(outputs.artifacts["report"]["uri"]).read_text()


def test_missing_log_fails_step(run_component, lifecycle) -> None:
    """A missing log fails the step."""
    with pytest.raises(RuntimeError, match="nowhere: no such file or folder"):
        run_component(monitor_drift, {"model": (dsl.Model, lifecycle.bundle)}, log="nowhere")
