"""read_samples: the columns of a split by role, after the preprocessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Column, Dataset, write_dataset

COLUMNS = (
    Column("x", "float32", (2,)),
    Column("y", "int32", (), "target"),
    Column("w", "float32", (), "weight"),
    Column("key", "int32", (), "id"),
)
PREPROCESSING = {"pre": [{"type": "Normalize", "mean": [1.0], "std": [2.0], "column": "x"}], "post": []}


def write(path: Path, preprocessing: dict[str, Any] = PREPROCESSING) -> Dataset:
    def make(count: int) -> dict[str, np.ndarray]:
        return {
            "x": np.arange(2 * count, dtype=np.float32).reshape(-1, 2),
            "y": np.arange(count, dtype=np.int32) % 2,
            "w": np.full(count, 0.5, np.float32),
            "key": 100 + np.arange(count, dtype=np.int32),
        }

    write_dataset(
        path,
        name="small",
        task="classification",
        columns=COLUMNS,
        splits={"train": make(6), "test": make(3)},
        labels=("a", "b"),
        preprocessing=preprocessing,
    )
    return Dataset.open(path)


def test_columns_are_given_by_role(tmp_path: Path) -> None:
    samples = read_samples(write(tmp_path / "d"), "test")
    assert len(samples) == 3
    assert samples.raw["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert samples.inputs["x"].tolist() == [[-0.5, 0], [0.5, 1], [1.5, 2]]
    assert samples.inputs["x"].flags.c_contiguous
    assert samples.target is not None
    assert samples.target.tolist() == [0, 1, 0]
    assert samples.weight is not None
    assert samples.weight.tolist() == [0.5] * 3
    assert {name: array.tolist() for name, array in samples.ids.items()} == {"key": [100, 101, 102]}


@pytest.mark.parametrize(("count", "expected"), [(None, 6), (1, 1), (4, 4), (100, 6)])
def test_count_keeps_first_samples(count: int | None, expected: int, tmp_path: Path) -> None:
    samples = read_samples(write(tmp_path / "d").path, "train", count=count)
    assert len(samples) == len(samples.inputs["x"]) == expected
    assert samples.ids["key"].tolist() == list(range(100, 100 + expected))


@pytest.mark.parametrize("count", [0, -1])
def test_count_below_one_is_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"count: must be at least 1, got {count}"):
        read_samples(tmp_path, "train", count=count)


def test_preprocessing_of_model_replaces_that_of_dataset(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d")
    given = {"pre": [{"type": "Normalize", "mean": [0.0], "std": [0.5], "column": "x"}], "post": []}
    assert read_samples(dataset, "test", preprocessing=given).inputs["x"][1].tolist() == [4, 6]
    assert read_samples(dataset, "test", preprocessing={}).inputs["x"][1].tolist() == [2, 3], "empty: none"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([{"name": "pixels", "dtype": "float32", "shape": [-1, 2]}], "the model's preprocessing takes pixels, got x"),
        ([{"name": "x", "dtype": "float32", "shape": [-1, 3]}], "the model's preprocessing x: "),
    ],
)
def test_preprocessing_of_other_columns_is_refused(inputs: list[Any], message: str, tmp_path: Path) -> None:
    dataset = write(tmp_path / "d")
    steps = [{"type": "Normalize", "mean": [0.0], "std": [1.0], "column": inputs[0]["name"]}]
    with pytest.raises(UserError, match=message) as caught:
        read_samples(dataset, "test", preprocessing={"pre": steps, "post": [], "inputs": inputs})
    assert str(dataset.path) in str(caught.value)
    assert "that the network was trained on" in caught.value.hint


def test_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holdout"):
        read_samples(write(tmp_path / "d"), "holdout")
