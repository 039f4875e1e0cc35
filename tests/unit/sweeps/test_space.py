"""Spaces and options of sweeps: what is refused, and what a sampler chooses from."""

from __future__ import annotations

import enum
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.commands import NETWORK_PARAMETERS
from kfp_mindspore.sweeps import Parameter, sweep
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.space import Space, parse_space
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
        ({"epochs": {"low": math.nan, "high": 1}}, "epochs: low and high must be finite numbers, got nan and 1"),
        ({"epochs": {"low": 0, "high": math.inf}}, "epochs: low and high must be finite numbers, got 0 and inf"),
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
        ({"objective": "mine", "direction": "up"}, "direction: must be"),
        ({"objective": "loss", "seeds": 0}, "seeds: must be an integer ≥ 1, got 0"),
        ({"objective": "loss", "parallel": 1.5}, "parallel: must be an integer"),
        ({"objective": "loss", "trial_timeout": 0}, "trial_timeout: must be"),
        ({"objective": "loss", "seed": -1}, "seed: must be an integer ≥ 0, got -1"),
        (
            {"objective": "loss", "pruner": "pbt", "sampler": "grid"},
            "pruner: pbt has one objective, one seed and no grid",
        ),
        ({"objective": "loss", "pruner": "halving", "objectives": ["rmse"]}, "pruner: halving has one objective"),
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


@settings(max_examples=20)
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # YAML 1.1 reads 1e-4 as a text.
        ("rate: [1e-4, 1.5E+3, -2e3, 1.e2]", {"rate": [1e-4, 1500.0, -2000.0, 100.0]}),
        ("rate: {low: 1e-4, high: 1e-1, log: true}", {"rate": {"low": 1e-4, "high": 0.1, "log": True}}),
        ("layer: [1e5x, e3, conv1e2]", {"layer": ["1e5x", "e3", "conv1e2"]}),
        (
            '{"x": {"choices": [1, "a", null], "when": {"y": [1e-3]}}}',
            {"x": {"choices": [1, "a", None], "when": {"y": [1e-3]}}},
        ),
        ("1: [2]", {"1": [2]}),
    ],
)
def test_space_is_parsed_from_yaml_or_json(text: str, expected: dict[str, Any]) -> None:
    assert parse_space(text, "space.yaml") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "space.yaml: must map parameters to values, got NoneType"),
        ("[1, 2]", "space.yaml: must map parameters to values, got list"),
        ("3", "space.yaml: must map parameters to values, got int"),
        ("x: [1", "space.yaml: is no YAML (while parsing a flow sequence)"),
        ("x: !!python/object:os.system []", "space.yaml: is no YAML (could not determine a constructor"),
    ],
)
def test_text_that_is_no_space_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_space(text, "space.yaml")
    assert message in str(caught.value)


choice_lists = st.lists(st.one_of(st.integers(-5, 5), st.sampled_from("abc"), st.booleans(), st.none()), min_size=1)
bounds = st.tuples(st.integers(1, 50), st.integers(51, 100))


@settings(max_examples=20)
@given(
    choice_lists,
    bounds,
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(0, 2**32 - 1),
)
def test_space_survives_yaml_and_sampler_stays_in_it(
    choices: list[Any], ends: tuple[int, int], is_float: bool, step: int | None, seed: int
) -> None:
    low, high = map(float, ends) if is_float else ends
    step = None if step is None or step > high - low else step
    fields = {"low": low, "high": high, **({} if step is None else {"step": float(step) if is_float else step})}
    given = {"choice": choices, "range": fields}
    assert parse_space(yaml.safe_dump(given), "x") == given
    assert parse_space(json.dumps(given), "x") == given

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    with warnings.catch_warnings():
        # Optuna shortens a range that is no multiple of its step.
        warnings.simplefilter("ignore", UserWarning)
        chosen = Space(given).suggest(study.ask())
    assert chosen["choice"] in choices
    assert low <= chosen["range"] <= high
    assert isinstance(chosen["range"], float if is_float else int)
    assert Space({"range": {**fields, "default": chosen["range"]}}).defaults == {"range": chosen["range"]}


CONDITIONAL = {
    "optimizer": ["Adam", "SGD", "Momentum"],
    "momentum": {"choices": [0.5, 0.9], "when": {"optimizer": ["SGD", "Momentum"]}},
    "nesterov": {"choices": [True, False], "when": {"optimizer": "SGD", "momentum": 0.9}},
}


def test_grid_has_conditional_parameters_where_they_are_used() -> None:
    assert Space(CONDITIONAL).list_grid() == [
        {"optimizer": "Adam"},
        {"optimizer": "SGD", "momentum": 0.5},
        {"optimizer": "SGD", "momentum": 0.9, "nesterov": True},
        {"optimizer": "SGD", "momentum": 0.9, "nesterov": False},
        {"optimizer": "Momentum", "momentum": 0.5},
        {"optimizer": "Momentum", "momentum": 0.9},
    ]


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_sampled_trial_is_in_grid(seed: int) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    assert Space(CONDITIONAL).suggest(study.ask()) in Space(CONDITIONAL).list_grid()


@pytest.mark.parametrize(
    ("chosen", "is_used"),
    [
        ({"optimizer": "SGD", "momentum": 0.9}, True),
        ({"optimizer": "SGD", "momentum": 0.5}, False),
        ({"optimizer": "Momentum", "momentum": 0.9}, False),
        # A condition on a parameter that is itself not used.
        ({"optimizer": "SGD"}, False),
        ({}, False),
    ],
)
def test_parameter_is_used_where_all_conditions_are_met(chosen: dict[str, Any], is_used: bool) -> None:
    assert Space(CONDITIONAL).parameters["nesterov"].is_used(chosen) is is_used


@pytest.mark.parametrize(
    ("record", "name", "expected"),
    [
        ({"loss": 0.5}, "", 0.5),
        ({"loss": 1}, "", 1.0),
        ({"loss": 0.5, "validation": {"loss": 0.25}}, "", 0.25),
        ({"loss": 0.5, "validation": None}, "", 0.5),
        ({"loss": 0.5, "validation": {"accuracy": 0.75}}, "accuracy", 0.75),
        ({"loss": "0.5"}, "", None),
        ({"loss": None}, "", None),
        ({"validation": {"loss": [1.0]}}, "", None),
        ({}, "", None),
    ],
)
def test_objective_is_validation_metric_or_value_of_record(
    record: dict[str, Any], name: str, expected: float | None
) -> None:
    assert SweepOptions(objective="loss").read_value(record, name) == expected


def test_grid_needs_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sampler: grid needs choices, and x has a range"):
        sweep({"script": "train.py"}, {"x": {"low": 0, "high": 1}}, "loss", directory=tmp_path, sampler="grid")


def test_directory_without_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "best", "resume"):
        assert run(["sweep", command, str(tmp_path)]) == 2
        assert f"{tmp_path}: is no sweep, it has no sweep.json" in capsys.readouterr().err
    with pytest.raises(UserError):
        read_sweep(tmp_path)
