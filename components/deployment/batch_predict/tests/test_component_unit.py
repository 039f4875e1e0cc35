from pathlib import Path

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


@pytest.mark.parametrize("name", ["rows", "folder/rows.npy", "folder/test.npy"])
def test_raw_rows_of_another_component_are_predicted(lifecycle, tmp_path, name) -> None:
    """Raw rows of another component are predicted as the dataset's samples are."""
    import json

    import numpy as np
    from kfp_mindspore.formats.dataset import Dataset

    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    images = Dataset.open(lifecycle.dataset).read_columns("test")["image"][:9]
    with file.open("wb") as stream:
        np.save(stream, images)
    if file.name == "test.npy":
        (file.parent / "train.npy").write_bytes(file.read_bytes())
    source = file if file.parent == tmp_path else file.parent
    predictions = dsl.Dataset(uri=str(tmp_path / "predictions"), metadata={})
    arguments = {"bundle": dsl.Model(uri=str(lifecycle.bundle)), "predictions": predictions, "shard": "2/2"}
    outputs = batch_predict.python_func(dataset=dsl.Dataset(uri=str(source)), **arguments)
    found = [json.loads(line) for line in (tmp_path / "predictions").read_text().splitlines()]
    _, expected = _predict(lifecycle, tmp_path, shard="2/2")
    lines = Path(expected.path).read_text().splitlines()
    known = {line["index"]: line for line in map(json.loads, lines)}
    assert outputs == (4,)
    assert [line["index"] for line in found] == [1, 3, 5, 7]
    assert [line["prediction"] for line in found] == [known[line["index"]]["prediction"] for line in found]


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
