"""Population-based training: who goes on from whom, and with what parameters."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient
from kfp_mindspore.sweeps import sweep
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.population import Generation, PopulationMember, list_generations, perturb, plan_generation
from kfp_mindspore.sweeps.space import Space

SPACE = Space(
    {
        "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
        "batch_size": {"low": 16, "high": 60, "step": 16},
        "layers": {"low": 1, "high": 4},
        "optimizer": ["Adam", "SGD", "Momentum"],
    }
)


PARAMETERS = {"learning_rate": 0.01, "batch_size": 32, "layers": 2, "optimizer": "SGD"}


@pytest.mark.parametrize(
    ("pruner", "ranked", "size", "sources"),
    [
        ("pbt", [1, 3, 2, 0], 4, [1, 3, 2, 1]),
        # Members that failed are losers.
        ("pbt", [1, 3], 4, [1, 3, 1, 1]),
        ("pbt", [0], 2, [0, 0]),
        ("halving", [1, 3, 2, 0], 2, [1, 3]),
        ("halving", [3], 2, [3, 3]),
    ],
)
def test_losers_go_on_from_winner(pruner: str, ranked: list[int], size: int, sources: list[int]) -> None:
    members = [PopulationMember(number, PARAMETERS) for number in ranked]
    options = SweepOptions(objective="loss", pruner=pruner, trials=8)

    planned = plan_generation(members, Generation(0, 4, 1), size, SPACE, options)

    assert [source for _, source in planned] == sources
    kept = min(len(ranked), size if pruner == "halving" else max(size - 1, 1))
    assert [parameters == PARAMETERS for parameters, _ in planned] == [place < kept for place in range(size)]
    assert planned == plan_generation(members, Generation(0, 4, 1), size, SPACE, options)


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


def test_generations_are_refused_on_cluster(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{}")
    client = MSJobClient(KubernetesBackend("default", kubeconfig=tmp_path / "config"))
    with pytest.raises(UserError, match="sweep: pbt copies checkpoints"):
        sweep({"script": "t.py"}, {"x": [1]}, "loss", directory=tmp_path / "s", client=client, pruner="pbt")
    assert not (tmp_path / "s").exists()
