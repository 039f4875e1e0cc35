import shutil
from pathlib import Path

import pytest
from kfp import dsl

from ..component import evaluate_mindir

pytest_plugins = ["kfp_mindspore.testing"]


def test_bundle_is_evaluated_on_test_split(run_component, lifecycle) -> None:
    """Bundle is evaluated on the test split."""
    outputs = run_component(
        evaluate_mindir,
        {"bundle": (dsl.Model, lifecycle.bundle), "dataset": (dsl.Dataset, lifecycle.dataset)},
        threshold=0.5,
    )
    assert outputs.parameters["samples"] == 360
    assert outputs.parameters["passed"] is True
    assert 0.5 < outputs.parameters["value"] <= 1
    rows = [row["row"] for row in outputs.artifacts["confusion"]["metadata"]["confusionMatrix"]["rows"]]
    assert sum(map(sum, rows)) == 360
    assert sum(rows[index][index] for index in range(10)) == round(360 * outputs.parameters["value"])
    assert outputs.artifacts["metrics"]["metadata"]["accuracy"] == outputs.parameters["value"]
    assert Path(outputs.artifacts["report"]["uri"]).read_text().startswith("<!DOCTYPE html>")


def test_damaged_bundle_fails_step(run_component, lifecycle, tmp_path) -> None:
    """Damaged bundle fails the step."""
    damaged = tmp_path / "damaged"
    shutil.copytree(lifecycle.bundle, damaged)
    content = bytearray((damaged / "model.mindir").read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / "model.mindir").write_bytes(content)
    with pytest.raises(RuntimeError, match=r"model.mindir: sha256 must be .* the file was changed"):
        run_component(evaluate_mindir, {"bundle": (dsl.Model, damaged), "dataset": (dsl.Dataset, lifecycle.dataset)})
