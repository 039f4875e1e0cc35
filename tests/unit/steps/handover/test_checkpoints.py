"""Checkpoint directories of a run's steps: found again by a resumed run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.steps.handover.checkpoints import StepCheckpoints
from kfp_mindspore.steps.handover.function_files import LocalFunctionFiles
from kfp_mindspore.steps.launch.options import merge_task_options
from kfp_mindspore.steps.launch.train import LocalTrainingFiles, to_arguments

HYPERPARAMETERS: dict[str, Any] = {"seed": 7, "epochs": 3, "learning_rate": 0.01, "layers": {"b": 2, "a": [1, 4]}}
# As KFP's struct or a placeholder inside a dict has them.
SAME: list[dict[str, Any]] = [
    dict(reversed(HYPERPARAMETERS.items())),
    {**HYPERPARAMETERS, "epochs": 3.0, "layers": {"a": [1.0, 4.0], "b": 2.0}},
    {**HYPERPARAMETERS, "epochs": "3.0", "seed": "7", "learning_rate": "0.010"},
]


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the checkpoint directory of the run whose step this process is."""
    monkeypatch.setenv("KFP_MINDSPORE_RUN_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("KFP_MINDSPORE_STEP", "train-msjob")
    monkeypatch.setenv("KFP_MINDSPORE_EVENTS", str(tmp_path / "events.jsonl"))
    return tmp_path / "checkpoints"


def open_training(tmp_path: Path, hyperparameters: dict[str, Any]) -> str:
    command = ["python", "train.py", *to_arguments(hyperparameters)]
    files = LocalTrainingFiles(str(tmp_path / "output"), str(tmp_path / "data"), command=command)
    return files.directories["KFP_MINDSPORE_CHECKPOINT_DIR"]


@pytest.mark.parametrize("same", SAME, ids=["order", "numbers", "texts"])
def test_training_finds_checkpoints_of_same_hyperparameters(
    checkpoints: Path, tmp_path: Path, same: dict[str, Any]
) -> None:
    first = open_training(tmp_path, HYPERPARAMETERS)
    assert open_training(tmp_path, same) == first
    assert open_training(tmp_path, {**HYPERPARAMETERS, "epochs": 4}) != first
    assert len(list(checkpoints.iterdir())) == 2


@given(st.randoms(use_true_random=False))
def test_command_does_not_depend_on_order(source: random.Random) -> None:
    items = list(HYPERPARAMETERS.items())
    source.shuffle(items)
    assert to_arguments(dict(items)) == to_arguments(HYPERPARAMETERS)


def test_function_finds_checkpoints_of_same_inputs(checkpoints: Path, tmp_path: Path) -> None:
    def open_function(values: dict[str, Any]) -> str:
        outputs = {"outputFile": str(tmp_path / "output.json")}
        return LocalFunctionFiles({"inputs": {"parameterValues": values}, "outputs": outputs}).checkpoint_dir

    first = open_function({"options": HYPERPARAMETERS, "count": 3})
    assert open_function({"count": 3.0, "options": SAME[1]}) == first


def test_job_does_not_depend_on_order_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_MSJOB_OPTIONS", '{"env": {"C": "3"}}')
    merged = [merge_task_options(JobOptions(env=env)).env for env in ({"B": "2", "A": "1"}, {"A": "1", "B": "2"})]
    assert [list(env) for env in merged] == [["A", "B", "C"]] * 2


@pytest.mark.parametrize(
    ("earlier", "reported"),
    [
        # The earlier attempt did not reach the step.
        ([], False),
        (["train-msjob-{own}/.lock"], True),
        (["train-msjob-{own}/0003-00000012/checkpoint.json"], False),
        (["train-msjob-0123456789ab/0003-00000012/checkpoint.json"], True),
    ],
    ids=["not reached", "no checkpoint", "checkpoint", "other arguments"],
)
def test_resumed_step_without_checkpoint_reports_it(
    checkpoints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    earlier: list[str],
    reported: bool,
) -> None:
    own = StepCheckpoints(tmp_path, ["arguments"]).path
    own.rmdir()
    for name in earlier:
        file = checkpoints / name.format(own=own.name.rpartition("-")[2])
        file.parent.mkdir(parents=True)
        file.touch()
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("KFP_MINDSPORE_RESUMED", "1")
    assert StepCheckpoints(tmp_path, ["arguments"]).path == own
    output = capsys.readouterr().out
    assert (f"no checkpoint of an earlier attempt in {own}: the step starts from its beginning" in output) == reported
    assert ("train-msjob-0123456789ab beside it" in output) == ("0123" in str(earlier))
    if reported:
        event = json.loads((tmp_path / "events.jsonl").read_text())
        assert (event["kind"], event["task"], event["text"]) == ("note", "train-msjob", output.strip())
