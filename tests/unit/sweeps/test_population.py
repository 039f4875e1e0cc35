"""Population-based training: who goes on from whom, and with what parameters."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.sweeps import Space, SweepOptions
from kfp_mindspore.sweeps.population import Member, list_generations, perturb, plan_generation, promote

SPACE = Space(
    {
        "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
        "batch_size": {"low": 16, "high": 60, "step": 16},
        "layers": {"low": 1, "high": 4},
        "optimizer": ["Adam", "SGD", "Momentum"],
    }
)


@pytest.mark.parametrize(
    ("values", "is_maximized", "sources"),
    [
        ([0.1, 0.9, 0.5, 0.7], True, [1, 1, 2, 3]),
        ([0.1, 0.9, 0.5, 0.7], False, [0, 0, 2, 3]),
        ([None, 0.9, None, 0.7], True, [1, 1, 1, 3]),
        ([0.5, None], True, [0, 0]),
    ],
)
def test_losers_and_failed_members_go_on_from_winner(
    values: list[float | None], is_maximized: bool, sources: list[int]
) -> None:
    parameters = {"learning_rate": 0.01, "batch_size": 32, "layers": 2, "optimizer": "SGD"}
    members = [Member(number, parameters, value) for number, value in enumerate(values)]

    planned = plan_generation(members, SPACE, is_maximized=is_maximized, seed="1")

    assert [source for _, source in planned] == sources
    for number, (chosen, source) in enumerate(planned):
        assert (chosen == parameters) == (number == source)
    assert planned == plan_generation(members, SPACE, is_maximized=is_maximized, seed="1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pruner": "pbt", "trials": 8, "interval": 2}, [(0, 4, 2), (4, 4, 4)]),
        ({"pruner": "halving", "trials": 13}, [(0, 9, 1), (9, 3, 3), (12, 1, 9)]),
        ({"pruner": "halving", "trials": 20, "interval": 2}, [(0, 14, 2), (14, 4, 6), (18, 1, 18)]),
        ({"pruner": "halving", "trials": 1}, [(0, 1, 1)]),
        ({"pruner": "asha", "trials": 8}, []),
    ],
)
def test_generations_fit_into_trials(options: dict[str, Any], expected: list[tuple[int, int, int]]) -> None:
    found = list_generations(SweepOptions(objective="loss", **options))
    assert [(item.start, item.size, item.epochs) for item in found] == expected


def test_best_members_are_promoted() -> None:
    parameters = {"learning_rate": 0.01, "layers": 2}
    members = [Member(number, parameters, value) for number, value in enumerate([0.3, None, 0.1, 0.2])]

    assert promote(members, 2, SPACE, is_maximized=False, seed="1") == [(parameters, 2), (parameters, 3)]
    found = promote(members, 4, SPACE, is_maximized=False, seed="1")
    assert [source for _, source in found] == [2, 3, 0, 2]
    assert found[3][0] != parameters


@given(st.integers(), st.floats(1e-4, 0.1), st.sampled_from([16, 32, 48]), st.integers(1, 4))
def test_perturbed_values_are_in_space(seed: int, rate: float, batch_size: int, layers: int) -> None:
    parameters = {"learning_rate": rate, "batch_size": batch_size, "layers": layers, "optimizer": "SGD"}
    found = perturb(parameters, SPACE, random.Random(seed))

    assert 1e-4 <= found["learning_rate"] <= 0.1
    assert found["batch_size"] in (16, 32, 48)
    assert isinstance(found["layers"], int)
    assert 1 <= found["layers"] <= 4
    assert abs(found["layers"] - layers) <= 1
    assert found["optimizer"] in ("Adam", "Momentum")


def test_options_of_population_are_checked() -> None:
    with pytest.raises(ValidationError, match="trials: must be a multiple of the population 4, got 6"):
        SweepOptions(objective="loss", pruner="pbt", trials=6)
    with pytest.raises(ValidationError, match="pbt has one objective, one seed and no grid"):
        SweepOptions(objective="loss", pruner="pbt", trials=8, seeds=2)
