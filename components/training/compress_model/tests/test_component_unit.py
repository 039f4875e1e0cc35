import json
from pathlib import Path

import pytest
from kfp import dsl

from ..component import compress_model

pytest_plugins = ["kfp_mindspore.testing"]


def call(lifecycle, tmp_path, **arguments):
    """Run the component's function on the lifecycle's model."""
    artifacts = {
        name: kind(uri=str(tmp_path / name), metadata={})
        for name, kind in {"compressed": dsl.Model, "metrics": dsl.Metrics, "report": dsl.HTML}.items()
    }
    outputs = compress_model.python_func(
        model=dsl.Model(uri=str(lifecycle.model)),
        dataset=dsl.Dataset(uri=str(lifecycle.dataset)),
        **artifacts,
        **arguments,
    )
    return outputs, artifacts


@pytest.mark.slow
@pytest.mark.mindspore
@pytest.mark.timeout(600)
def test_compressed_model_has_checkpoint_report_and_metrics(lifecycle, tmp_path) -> None:
    """The compressed model has a checkpoint, a report and metrics."""
    outputs, artifacts = call(lifecycle, tmp_path, epochs=1, max_accuracy_lost=0.0, learning_rate=1e-9, rounds=1)
    assert (outputs.passed, outputs.metric) == (False, "accuracy")
    assert outputs.lost > 0
    assert outputs.pruned >= 0.5
    assert (tmp_path / "compressed/checkpoint/network.ckpt").is_file()
    assert "gate not met" in Path(artifacts["report"].path).read_text()
    logged = artifacts["metrics"].metadata
    assert logged["parameters"] < 0.5 * logged["parameters_before"]
    described = json.loads((tmp_path / "compressed/compression.json").read_text())
    assert artifacts["compressed"].metadata["pruned"] == described["pruned"] == outputs.pruned


def test_wrong_option_is_named(lifecycle, tmp_path) -> None:
    """A wrong option is named."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="weights: must be one of"):
        call(lifecycle, tmp_path, weights="int4")
