import shutil
from pathlib import Path

import pytest
from kfp import dsl

from ..component import compare_models

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.fixture
def inputs(lifecycle):
    """Return a candidate and a dataset."""
    return {"candidate": (dsl.Model, lifecycle.bundle), "dataset": (dsl.Dataset, lifecycle.dataset)}


@pytest.mark.mindspore
def test_equal_bundle_is_not_better(run_component, lifecycle, inputs) -> None:
    """Equal bundle is not better."""
    baseline = {"baseline": (dsl.Model, lifecycle.bundle)}
    outputs = run_component(compare_models, {**inputs, **baseline})
    assert outputs.parameters["better"] is False
    assert outputs.parameters["value"] == outputs.parameters["baseline_value"] > 0.5
    assert outputs.parameters["low"] == outputs.parameters["high"] == 0
    assert outputs.artifacts["metrics"]["metadata"]["agreement"] == 1
    page = Path(outputs.artifacts["report"]["uri"]).read_text()
    assert page.startswith("# The candidate is not better")


@pytest.mark.mindspore
def test_bundle_is_compared_with_service(run_component, lifecycle, inputs) -> None:
    """Bundle is compared with the service."""
    from kfp_mindspore.inference import InferenceClient, Service

    client = InferenceClient()
    client.deploy(Service("serves", lifecycle.bundle))
    try:
        outputs = run_component(compare_models, inputs, service_name="serves", margin=-0.01)
    finally:
        client.delete("serves")
    assert outputs.parameters["better"] is True
    assert outputs.parameters["value"] == outputs.parameters["baseline_value"] > 0.5
    assert outputs.artifacts["metrics"]["metadata"]["agreement"] == 1
    assert "service serves, version 1" in Path(outputs.artifacts["report"]["uri"]).read_text()


@pytest.mark.mindspore
def test_damaged_candidate_fails_step(run_component, lifecycle, inputs, tmp_path) -> None:
    """Damaged candidate fails the step."""
    damaged = tmp_path / "damaged"
    shutil.copytree(lifecycle.bundle, damaged)
    (damaged / "model.mindir").unlink()
    with pytest.raises(RuntimeError, match=r"damaged: no model bundle: model\.mindir missing"):
        run_component(compare_models, {**inputs, "candidate": (dsl.Model, damaged)})
