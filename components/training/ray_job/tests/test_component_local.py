import json
from pathlib import Path

import pytest
from kfp import dsl

from ..component import ray_job

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.ray
@pytest.mark.mindspore
@pytest.mark.timeout(600)
def test_digits_are_trained_on_ray(run_component, lifecycle) -> None:
    """Digits are trained by two of Ray's workers."""
    outputs = run_component(
        ray_job,
        {"dataset": (dsl.Dataset, lifecycle.dataset)},
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": 1, "seed": 1},
        workers=2,
    )
    model = outputs.artifacts["model"]
    assert (Path(model["uri"]) / "checkpoint" / "checkpoint.json").is_file()
    assert json.loads((Path(model["uri"]) / "checkpoint" / "checkpoint.json").read_text())["training"]["workers"] == 2
    assert 0 < outputs.artifacts["metrics"]["metadata"]["validation.accuracy"] <= 1
