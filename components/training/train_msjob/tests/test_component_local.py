import sys
from pathlib import Path

import pytest
from kfp import dsl

from ..component import train_msjob

pytest_plugins = ["kfp_mindspore.testing"]

# A training script without MindSpore that follows the training contract.
SCRIPT = """
import json, os, pathlib, sys
output = pathlib.Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
attempts = pathlib.Path(os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"], "attempts")
attempt = int(attempts.read_text()) + 1 if attempts.exists() else 1
attempts.write_text(str(attempt))
print("attempt", attempt, "of", sys.argv[1:])
if attempt < int(sys.argv[1]):
    sys.exit(143)
if sys.argv[2:] == ["--fail"]:
    raise ValueError("invalid data")
data = os.environ.get("KFP_MINDSPORE_DATASET_DIR", "")
(output / "note.json").write_text(json.dumps([data, attempt, os.environ.get("A")]))
(output / "metrics.jsonl").write_text('{"epoch": 1, "loss": 0.5}\\n{"epoch": 2, "loss": 0.25}\\n')
"""


@pytest.fixture
def script(tmp_path) -> Path:
    """Write a training script."""
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def test_script_resumes_after_restart(run_component, script, tmp_path) -> None:
    """Script resumes after a restart."""
    (tmp_path / "data").mkdir()
    outputs = run_component(
        train_msjob,
        {"dataset": (dsl.Dataset, tmp_path / "data")},
        command=[sys.executable, str(script)],
        args=["2"],
        env={"A": "b"},
        job_name="twice",
    )
    model = Path(outputs.artifacts["model"]["uri"])
    assert (model / "note.json").read_text() == f'["{tmp_path / "data"}", 2, "b"]'
    assert outputs.artifacts["model"]["metadata"]["job"] == "twice"
    assert outputs.artifacts["metrics"]["metadata"] == {"epoch": 2, "loss": 0.25}
    assert "attempt 1 of ['2']" in outputs.log
    assert "attempt 2 of ['2']" in outputs.log
    assert [path.name for path in model.parent.iterdir() if "checkpoint" in path.name] == []


def test_failed_script_fails_step_with_its_last_lines(run_component, script) -> None:
    """Failed script fails the step with its last lines."""
    with pytest.raises(RuntimeError, match="ValueError: invalid data"):
        run_component(train_msjob, command=[sys.executable, str(script)], args=["1", "--fail"])


@pytest.mark.mindspore
def test_digits_are_trained(run_component, lifecycle) -> None:
    """Digits are trained."""
    outputs = run_component(
        train_msjob,
        {"dataset": (dsl.Dataset, lifecycle.dataset)},
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": 1},
    )
    assert (Path(outputs.artifacts["model"]["uri"]) / "checkpoint" / "checkpoint.json").is_file()
    assert outputs.artifacts["metrics"]["metadata"]["epoch"] == 1
    assert outputs.artifacts["model"]["metadata"]["epoch"] == 1
