import json
import sys
from pathlib import Path

import pytest
from kfp import dsl

from ..component import sweep_msjob

pytest_plugins = ["kfp_mindspore.testing"]

# A training script without MindSpore that follows the training contract.
SCRIPT = """
import argparse, json, os, pathlib
parser = argparse.ArgumentParser()
for name, kind in (("--rate", float), ("--size", int), ("--epochs", int)):
    parser.add_argument(name, type=kind, required=True)
options = parser.parse_args()
output = pathlib.Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
assert pathlib.Path(os.environ["KFP_MINDSPORE_DATASET_DIR"]).is_dir()
(output / "note.json").write_text(json.dumps(vars(options)))
pathlib.Path(os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"], "state").write_text("1")
with (output / "metrics.jsonl").open("w") as file:
    for epoch in range(1, options.epochs + 1):
        file.write(json.dumps({"epoch": epoch, "loss": options.rate + 1 / epoch}) + "\\n")
"""


@pytest.fixture
def command(tmp_path) -> list[str]:
    """Write a training script."""
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return [sys.executable, str(file)]


@pytest.mark.timeout(120)
def test_best_trial_becomes_model(run_component, command, tmp_path) -> None:
    """Best trial becomes the model."""
    (tmp_path / "data").mkdir()
    outputs = run_component(
        sweep_msjob,
        {"dataset": (dsl.Dataset, tmp_path / "data")},
        command=command,
        hyperparameters={"epochs": 2},
        space="{rate: [0.5, 0.25], size: [16]}",
        objective="loss",
        sampler="grid",
        parallel=2,
    )
    artifacts = outputs.artifacts
    model = Path(artifacts["model"]["uri"])
    metadata = artifacts["model"]["metadata"]
    assert json.loads((model / "note.json").read_text()) == {"rate": 0.25, "size": 16, "epochs": 2}
    assert not (model / "checkpoints").exists()
    assert outputs.parameters == {"best_parameters": {"rate": 0.25, "size": 16}, "best_value": 0.75}
    assert (metadata["trial"], metadata["objective"], metadata["objective_value"]) == (1, "loss", 0.75)
    assert metadata["job"].endswith("-1")
    assert json.loads(metadata["parameters"]) == {"rate": 0.25, "size": 16}
    assert json.loads(metadata["hyperparameters"]) == {"epochs": 2, "rate": 0.25, "size": 16}
    assert artifacts["metrics"]["metadata"] == {"epoch": 2, "loss": 0.75}
    table = Path(artifacts["trial_table"]["uri"]).read_text().splitlines()
    assert table[0] == "| trial | state | loss | epochs | seconds | rate | size | reason |"
    assert [line.split(" | ")[0] for line in table[2:]] == ["| 1", "| 0"]
    assert "Parallel coordinates" in Path(artifacts["report"]["uri"]).read_text()
    assert "trial 1" in Path(artifacts["curves"]["uri"]).read_text()
    assert [path.name for path in model.parent.iterdir() if "sweep" in path.name] == []
    assert "trial 1 complete 0.75 after 2 epochs, rate=0.25, size=16" in outputs.log


@pytest.mark.mindspore
@pytest.mark.timeout(300)
def test_digits_are_swept_and_exported(run_component, lifecycle, tmp_path) -> None:
    """Digits are swept and the best model can be exported."""
    from kfp_mindspore.mindir import export_mindir

    outputs = run_component(
        sweep_msjob,
        {"dataset": (dsl.Dataset, lifecycle.dataset)},
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": 2},
        space="{learning_rate: [1e-5, 3e-3]}",
        objective="accuracy",
        sampler="grid",
    )
    assert outputs.parameters["best_parameters"] == {"learning_rate": 0.003}
    model = Path(outputs.artifacts["model"]["uri"])
    export_mindir(model / "checkpoint", tmp_path / "bundle", dataset_dir=lifecycle.dataset)
    assert outputs.artifacts["model"]["metadata"]["network"]
