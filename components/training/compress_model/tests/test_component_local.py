from pathlib import Path

import pytest
from kfp import dsl

from ..component import compress_model

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checkpoint_is_compressed(run_component, lifecycle) -> None:
    """A checkpoint is compressed."""
    outputs = run_component(
        compress_model,
        {"model": (dsl.Model, lifecycle.model), "dataset": (dsl.Dataset, lifecycle.dataset)},
        epochs=1,
        max_accuracy_lost=1.0,
        weights="int8",
    )
    assert outputs.parameters["passed"] is True
    assert outputs.parameters["pruned"] >= 0.5
    assert Path(outputs.artifacts["compressed"]["uri"], "checkpoint/network.packed.npz").is_file()
    assert "Compression" in Path(outputs.artifacts["report"]["uri"]).read_text()


def test_missing_checkpoint_fails_step(run_component, lifecycle, tmp_path) -> None:
    """Missing checkpoint fails the step."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="empty/checkpoint: no such checkpoint directory"):
        run_component(
            compress_model,
            {"model": (dsl.Model, tmp_path / "empty"), "dataset": (dsl.Dataset, lifecycle.dataset)},
        )
