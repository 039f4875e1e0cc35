import json
from pathlib import Path

import pytest
from kfp import dsl

from ..component import select_samples


@pytest.fixture
def pets(tmp_path: Path) -> dsl.Dataset:
    """Write a dataset with a pool."""
    import numpy as np
    from kfp_mindspore.formats.dataset import Column, write_dataset

    columns = (Column("x", "float32", (1,)), Column("y", "int32", (), "target"))
    arrays = {"x": np.arange(10, dtype=np.float32).reshape(-1, 1), "y": np.arange(10, dtype=np.int32) % 2}
    write_dataset(
        tmp_path / "pets",
        name="pets",
        task="classification",
        columns=columns,
        splits={"train": arrays, "test": arrays},
        labels=("cat", "dog"),
        preprocessing={"pre": [{"type": "Normalize", "mean": [0.0], "std": [2.0], "column": "x"}], "post": []},
    )
    return dsl.Dataset(uri=str(tmp_path / "pets"), metadata={})


def test_rounds_move_samples_from_pool_to_train(pets, tmp_path) -> None:
    """Rounds move samples from pool to train."""
    from kfp_mindspore.formats.dataset import Dataset

    source = Dataset.open(pets.path)
    given, labelled = pets, []
    for number, (count, left) in enumerate([(4, 6), (4, 2), (4, 0)]):
        artifact = dsl.Dataset(uri=str(tmp_path / f"round-{number}"), metadata={})
        result = select_samples.python_func(dataset=given, selected=artifact, strategy="random", count=count)
        pool = (Dataset.open(given.path)).read_columns("pool" if number else "train")["x"].ravel()
        labelled += pool[result[0]].tolist()
        written = Dataset.open(artifact.path)
        columns = written.read_columns("train")
        assert result[1:] == (10 - left, left)
        assert columns["x"].ravel().tolist() == labelled
        assert columns["y"].tolist() == [int(value) % 2 for value in labelled]
        assert {*written.read_columns("pool")["x"].ravel().tolist(), *labelled} == set(range(10))
        assert (written.preprocessing, written.labels) == (source.preprocessing, source.labels)
        assert written.read_columns("test")["x"].tolist() == source.read_columns("test")["x"].tolist()
        assert json.loads(artifact.metadata["splits"]) == dict(written.splits)
        given = artifact
    assert sorted(labelled) == list(range(10))


def test_strategy_without_model_is_refused(pets, tmp_path) -> None:
    """Strategy without a model is refused."""
    from kfp_mindspore.errors import UserError

    artifact = dsl.Dataset(uri=str(tmp_path / "selected"), metadata={})
    with pytest.raises(UserError, match="strategy: margin needs a bundle") as caught:
        select_samples.python_func(dataset=pets, selected=artifact, strategy="margin")
    assert "random" in str(caught.value.hint)
    assert not Path(artifact.path).exists()
