"""Spaces and options of sweeps: what is refused, and what a sampler chooses from."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.commands import NETWORK_PARAMETERS
from kfp_mindspore.sweeps import Parameter, sweep
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.space import Space
from kfp_mindspore.sweeps.study import read_sweep
from kfp_mindspore.training import TrainingConfig


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
        (
            {"epochs": {"lo": 1, "high": 3}},
            "epochs: unknown lo; a parameter has low, high, step, log, choices, when, default",
        ),
        ({"learning_rate": {"low": 0, "high": 1, "log": True}}, "a logarithmic range must be above 0, got 0"),
        ({"epochs": {"low": 1, "high": 3, "step": 5}}, "epochs.step: must be above 0 and at most 2, got 5"),
        ({"epochs": {"low": 1, "high": 3, "default": 4}}, "epochs: its default 4 is outside its range 1 to 3"),
        ({"epochs": {"low": 1, "high": 9, "step": 2, "default": 4}}, "4 is outside its range 1 to 9 in steps of 2"),
        ({"epochs": {"choices": [1, 2], "default": 3}}, "epochs: its default 3 is none of its choices [1, 2]"),
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
        ({"objective": "loss", "objectives": ["speed"]}, "objectives: must be speed:minimize or speed:maximize"),
        ({"objective": "loss", "objectives": ["loss"]}, "objectives: 'loss' is there twice"),
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


class Precision(enum.Enum):
    SINGLE = "float32"
    HALF = "float16"


@dataclass(frozen=True, kw_only=True)
class Search(TrainingConfig):
    learning_rate: Annotated[float, Parameter(1, 10, log=True)] = 2.0
    batch_size: Annotated[int, Parameter(16, 64, step=16)] = 32
    optimizer: Literal["Adam", "SGD"] = "Adam"
    precision: Precision = Precision.HALF  # type: ignore[assignment]
    weight_decay: Annotated[float, Parameter(0.0, 0.1, when={"optimizer": "SGD"})]


def test_space_is_read_from_annotations() -> None:
    expected = {
        "batch_size": {"low": 16, "high": 64, "step": 16, "default": 32},
        "precision": {"choices": ["float32", "float16"], "default": "float16"},
        "learning_rate": {"low": 1.0, "high": 10, "log": True, "default": 2.0},
        "optimizer": {"choices": ["Adam", "SGD"], "default": "Adam"},
        "weight_decay": {"low": 0.0, "high": 0.1, "when": {"optimizer": "SGD"}},
    }
    space = Space(Search, (*NETWORK_PARAMETERS, "weight_decay"))
    assert space.to_dict() == expected
    assert not space.parameters["learning_rate"].is_integer
    assert space.defaults == {"batch_size": 32, "precision": "float16", "learning_rate": 2.0, "optimizer": "Adam"}


@dataclass
class OutOfRange:
    rate: Annotated[float, Parameter(0.1, 1.0)] = 2.0


@dataclass
class Fractions:
    layers: Annotated[int, Parameter(0.5, 2)] = 1


@dataclass
class Plain:
    rate: float = 0.1


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (OutOfRange, "rate: its default 2.0 is outside its range 0.1 to 1"),
        (Fractions, "layers: is an int, so its range must have integers"),
        (Plain, "Plain: no field has a range or choices"),
        (Path, "Path: must be a dataclass"),
    ],
)
def test_wrong_declaration_is_refused(declaration: type[Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Space(declaration)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("none.yaml", "none.yaml: no such file"),
        ("no_such_module:Options", "no_such_module"),
        ("json:Missing", "json has no callable 'Missing'"),
        ("json:loads", "loads: must be a dataclass"),
    ],
)
def test_missing_space_is_refused(space: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "run", str(tmp_path / "sweep"), "--script", "train.py", "--objective", "loss", "--space", space]
    assert run(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_grid_needs_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sampler: grid needs choices, and x has a range"):
        sweep({"script": "train.py"}, {"x": {"low": 0, "high": 1}}, "loss", directory=tmp_path, sampler="grid")


def test_directory_without_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "best", "resume"):
        assert run(["sweep", command, str(tmp_path)]) == 2
        assert f"{tmp_path}: is no sweep, it has no sweep.json" in capsys.readouterr().err
    with pytest.raises(UserError):
        read_sweep(tmp_path)
