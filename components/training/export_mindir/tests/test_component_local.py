import pytest
from kfp import dsl

from ..component import export_mindir

pytest_plugins = ["kfp_mindspore.testing"]


def test_checkpoint_is_exported_to_verified_bundle(run_component, lifecycle) -> None:
    """Checkpoint is exported to a verified bundle."""
    from kfp_mindspore.formats.bundle import ModelBundle

    outputs = run_component(
        export_mindir,
        {"model": (dsl.Model, lifecycle.model), "dataset": (dsl.Dataset, lifecycle.dataset)},
        samples=32,
    )
    assert outputs.parameters["max_abs_diff"] <= 1e-5
    bundle = ModelBundle.open(outputs.artifacts["bundle"]["uri"])
    assert bundle.signature.verified["samples"] == 32
    assert outputs.artifacts["bundle"]["metadata"]["format"] == "mindir"


def test_missing_checkpoint_fails_step(run_component, lifecycle, tmp_path) -> None:
    """Missing checkpoint fails the step."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="empty/checkpoint: no such checkpoint directory"):
        run_component(
            export_mindir,
            {"model": (dsl.Model, tmp_path / "empty"), "dataset": (dsl.Dataset, lifecycle.dataset)},
        )
