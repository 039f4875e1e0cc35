"""Spaces and options of sweeps: what is refused, and what a sampler chooses from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.sweeps import Space, SweepOptions, read_sweep, sweep


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "space: must have at least one parameter"),
        ({"learning_rte": [1]}, "learning_rte: the training has no such parameter; did you mean 'learning_rate'?"),
        ({"epochs": 3}, "epochs: must be a list of choices, or low and high, got 3"),
        ({"epochs": []}, "epochs.choices: must not be empty"),
        ({"epochs": [[1]]}, "epochs.choices: must be numbers, texts, true, false or null, got [1]"),
        ({"epochs": {"low": 1}}, "epochs: must have choices, or low and high"),
        ({"epochs": {"low": 3, "high": 3}}, "epochs: low must be below high, got 3 and 3"),
        ({"epochs": {"low": 1, "high": 3, "choices": [1]}}, "epochs: must have either choices, or low and high"),
        ({"epochs": {"low": "1", "high": 3}}, "epochs.low: must be a number, got '1'"),
        ({"epochs": {"lo": 1, "high": 3}}, "epochs: unknown lo; a parameter has low, high, step, log, choices, when"),
        ({"learning_rate": {"low": 0, "high": 1, "log": True}}, "a logarithmic range must be above 0, got 0"),
        ({"epochs": {"low": 1, "high": 3, "step": 5}}, "epochs.step: must be above 0 and at most 2, got 5"),
        ({"epochs": {"low": 1, "high": 3, "when": {"seed": 1}}}, "epochs.when: 'seed' is no parameter before it"),
    ],
)
def test_wrong_space_is_refused_by_name(space: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Space(space, ["learning_rate", "epochs", "seed"])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "loss", "trials": 0}, "trials: must be an integer ≥ 1, got 0"),
        ({"objective": "loss", "pruner": "asah"}, "pruner: must be"),
        ({"objective": "acuracy"}, "direction: must be minimize or maximize for 'acuracy'"),
    ],
)
def test_wrong_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SweepOptions(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("objective", "direction", "is_maximized"),
    [("accuracy", "", True), ("loss", "", False), ("rmse", "", False), ("mine", "maximize", True)],
)
def test_direction_is_metrics_own(objective: str, direction: str, is_maximized: bool) -> None:
    assert SweepOptions(objective=objective, direction=direction).is_maximized is is_maximized


@given(st.integers(0, 2**32 - 1))
def test_chosen_values_are_in_space(seed: int) -> None:
    space = Space(
        {
            "optimizer": ["Adam", "Momentum"],
            "momentum": {"low": 0.5, "high": 0.99, "when": {"optimizer": "Momentum"}},
            "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
            "batch_size": {"low": 16, "high": 64, "step": 16},
        }
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    chosen = space.suggest(study.ask())

    assert ("momentum" in chosen) == (chosen["optimizer"] == "Momentum")
    assert 1e-4 <= chosen["learning_rate"] <= 0.1
    assert chosen["batch_size"] in (16, 32, 48, 64)
    assert isinstance(chosen["batch_size"], int)
    assert Space(space.to_dict()).to_dict() == space.to_dict()


def test_grid_needs_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sampler: grid needs choices, and x has a range"):
        sweep({"script": "train.py"}, {"x": {"low": 0, "high": 1}}, "loss", directory=tmp_path, sampler="grid")


def test_directory_without_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "best", "resume"):
        assert run(["sweep", command, str(tmp_path)]) == 2
        assert f"{tmp_path}: is no sweep, it has no sweep.json" in capsys.readouterr().err
    with pytest.raises(UserError):
        read_sweep(tmp_path)
