"""TrainingConfig, schedules and columns, without MindSpore."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import docstring_parser
import numpy as np
import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.training.computation.freezing import list_frozen
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.names import is_lower_better
from kfp_mindspore.training.samples.columns import Parameters, order_inputs
from kfp_mindspore.training.schedules import Schedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: must be at least 1, got 0"),
        ({"epochs": "3"}, "epochs: must be an integer, got '3' (str)"),
        ({"batch_size": 32.0}, "batch_size: must be an integer, got 32.0 (float)"),
        ({"seed": -1}, "seed: must be an integer from 0 to 2³² - 1, got -1"),
        ({"clip_norm": 0}, "clip_norm: must be a number above 0, got 0"),
        ({"clip_value": "1"}, "clip_value: must be a number above 0, got '1'"),
        ({"ema": 1}, "ema: must be a number from 0 to below 1, got 1"),
        ({"shuffle": "no"}, "shuffle: must be True or False, got 'no'"),
        ({"parallel_mode": "auto"}, "parallel_mode: unknown 'auto'"),
        (
            {"parallel_options": {"pipeline_stages": 2}},
            "parallel_options: has no effect on parallel_mode data_parallel",
        ),
        (
            {"parallel_mode": "auto_parallel", "accumulate": 2},
            "accumulate: has no effect on parallel_mode auto_parallel",
        ),
        ({"precision": "float61"}, "precision: unknown 'float61'; did you mean 'float16'?"),
        ({"device": "gpu"}, "device: must be one of auto, CPU, GPU, Ascend, got 'gpu'; did you mean 'GPU'?"),
        ({"device": None}, "device: must be one of auto, CPU, GPU, Ascend, got None"),
        ({"device_id": -1}, "device_id: must be an integer of at least 0, got -1"),
        ({"device_id": "0"}, "device_id: must be an integer of at least 0, got '0'"),
        ({"deterministic": 1}, "deterministic: must be True or False, got 1"),
        ({"schedule": "cosin"}, "schedule: unknown 'cosin'; did you mean 'cosine'?"),
        ({"schedule": {"name": "step", "evry": 2}}, "schedule.evry: unknown; did you mean 'every'?"),
        ({"schedule": {"name": "linear", "end": 2}}, "schedule.end: must be a number from 0 to 1, got 2"),
        ({"schedule": 0.1}, "schedule: must be a name or a dict, got 0.1"),
        ({"early_stopping": {"patiense": 3}}, "early_stopping.patiense: unknown; did you mean 'patience'?"),
        ({"reduce_on_plateau": 3}, "reduce_on_plateau: must be a dict of arguments"),
        ({"reduce_on_plateau": {}, "schedule": "linear"}, "both it and the schedule set the learning rate"),
        ({"class_weights": "balance"}, "class_weights: must be numbers or 'balanced', got 'balance'"),
        ({"class_weights": [1, -1]}, "class_weights: must be numbers of at least 0, one per class"),
        ({"unfreeze": {2: ["a.*"]}}, "unfreeze: needs freeze"),
        ({"freeze": ["a.*"], "unfreeze": ["a.*"]}, "unfreeze: must be {epoch: [patterns]}"),
        ({"freeze": ["a.*"], "unfreeze": {0: ["a.*"]}}, "unfreeze: epochs must be at least 1, got 0"),
        ({"augment": 3}, "augment: must be a function, got int"),
        ({"train_step": print, "ema": 0.9}, "ema: has no effect on a train_step of your own"),
        ({"ema": 0.9, "early_stopping": {"restore_best_weights": True}}, "use keep_best"),
        ({"output_dir": 3}, "output_dir: must be a path, got int"),
        ({"metrics": 3}, "metrics: must be names"),
        ({"epochs": 0, "batch_size": 0}, "epochs: must be at least 1, got 0; batch_size: must be at least 1, got 0"),
    ],
)
def test_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainingConfig(**options)
    assert message in str(error.value)


def test_forms_of_options_are_normalised() -> None:
    config = TrainingConfig(metrics="accuracy", freeze="a.*", unfreeze={"3": "a.b"}, schedule="cosine")
    assert config.metrics == ("accuracy",)
    assert config.freeze == ("a.*",)
    assert config.unfreeze == {3: ("a.b",)}
    assert config.schedule == Schedule(name="cosine")
    assert config.replace(epochs=3).freeze == ("a.*",)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        # Steps 0, 5 and 9 of 2 epochs with 5 steps each.
        (Schedule(), (1, 1, 1)),
        (Schedule(name="cosine"), (1, 0.5, (1 + math.cos(0.9 * math.pi)) / 2)),
        (Schedule(name="cosine", end=0.1), (1, 0.55, 0.1 + 0.9 * (1 + math.cos(0.9 * math.pi)) / 2)),
        (Schedule(name="linear"), (1, 0.5, 0.1)),
        (Schedule(name="linear", end=0.5), (1, 0.75, 0.55)),
        (Schedule(name="polynomial", power=3), (1, 0.125, 0.001)),
        (Schedule(name="exponential", rate=0.5), (1, 0.5, 0.5**1.8)),
        (Schedule(name="step", rate=0.1, every=1), (1, 0.1, 0.1)),
        (Schedule(warmup_epochs=2), (0.1, 0.6, 1)),
        (Schedule(name="linear", warmup_epochs=0.4), (0.5, 0.5, 0.1)),
    ],
)
def test_schedule_factors(schedule: Schedule, factors: tuple[float, ...]) -> None:
    assert [schedule.compute_factor(step, 5, 2) for step in (0, 5, 9)] == pytest.approx(factors)


@pytest.mark.parametrize(
    ("metric", "lower"),
    [("loss", True), ("eval_loss", True), ("mae", True), ("size.mae", True), ("perplexity", True), ("accuracy", False),
     ("loss.accuracy", False), ("r2", False)],
)  # fmt: skip
def test_direction_of_metric(metric: str, lower: bool) -> None:
    assert is_lower_better(metric) == lower


NAMES = ("front.0.weight", "front.1.weight", "head.weight")


@pytest.mark.parametrize(
    ("freeze", "unfreeze", "expected"),
    [
        ((), {}, [set(), set(), set()]),
        (("front.*",), {}, [{0, 1}, {0, 1}, {0, 1}]),
        (("front.*",), {2: ("front.1.*",), 3: ("front.*",)}, [{0, 1}, {0}, set()]),
        (("*",), {1: ("head.*",)}, [{0, 1}, {0, 1}, {0, 1}]),
    ],
)
def test_frozen_parameters_by_epoch(freeze: Any, unfreeze: Any, expected: list[set[int]]) -> None:
    config = TrainingConfig(freeze=freeze, unfreeze=unfreeze)
    found = [list_frozen(config, NAMES, epoch) for epoch in (1, 2, 3)]
    assert found == [{NAMES[index] for index in indices} for indices in expected]


ONE, TWO = Parameters(("x",), 1, False), Parameters(("ids", "x"), 2, False)
OPTIONAL, OPEN = Parameters(("ids", "x", "mask"), 2, False), Parameters((), 0, True)


@pytest.mark.parametrize(
    ("given", "parameters", "expected"),
    [
        ("image", ONE, "image"),
        ("x ids", TWO, "ids x"),
        ("ids x", OPTIONAL, "ids x"),
        ("mask x ids", OPTIONAL, "ids x mask"),
        ("b a", OPEN, "b a"),
    ],
)
def test_inputs_are_matched_by_name(given: str, parameters: Parameters, expected: str) -> None:
    assert list(order_inputs(dict.fromkeys(given.split()), parameters, "data")) == expected.split()


@pytest.mark.parametrize(
    ("given", "parameters", "message"),
    [
        ("x y", ONE, "data: has the inputs x, y, and the network's construct takes x; names must be equal"),
        ("image ids", TWO, "data: has the inputs image, ids, and the network's construct takes ids, x"),
        ("x", TWO, "data: has 1 input, and the network's construct takes ids, x"),
    ],
)
def test_inputs_that_do_not_fit_are_named(given: str, parameters: Parameters, message: str) -> None:
    with pytest.raises(UserError) as error:
        order_inputs(dict.fromkeys(given.split(), np.zeros(3)), parameters, "data")
    assert message in str(error.value)


def test_every_option_is_documented() -> None:
    """The reference page of the site is generated from the docstring."""
    described = {parameter.arg_name for parameter in docstring_parser.parse(TrainingConfig.__doc__ or "").params}
    assert described == {field.name for field in dataclasses.fields(TrainingConfig)}
