import pytest
from kfp import dsl

from ..component import batch_predict

pytest_plugins = ["kfp_mindspore.testing"]


def _predict(lifecycle, tmp_path, **arguments):
    predictions = dsl.Dataset(uri=str(tmp_path / "predictions"), metadata={})
    outputs = batch_predict.python_func(
        bundle=dsl.Model(uri=str(lifecycle.bundle)),
        dataset=dsl.Dataset(uri=str(lifecycle.dataset)),
        predictions=predictions,
        **arguments,
    )
    return outputs, predictions


def test_shard_beyond_samples_is_empty(lifecycle, tmp_path) -> None:
    """Shard beyond the samples is empty."""
    outputs, predictions = _predict(lifecycle, tmp_path, shard="400/400")
    assert outputs == (0,)
    assert (tmp_path / "predictions").read_text() == ""
    assert predictions.metadata["shards"] == 400
    assert len(predictions.metadata["model_sha256"]) == 64


@pytest.mark.parametrize("shard", ["3/2", "0/2", "1/0", "1", "-1/2", "a/b", ""])
def test_shard_outside_shards_is_refused(lifecycle, tmp_path, shard) -> None:
    """Shard outside the shards is refused."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="shard: must be a number"):
        _predict(lifecycle, tmp_path, shard=shard)
    assert not (tmp_path / "predictions").exists()
