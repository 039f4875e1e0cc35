"""load_dataset by Ray: the same columns, statistics and preprocessing as in memory, as shards split by hashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from kfp_mindspore.data import load_dataset as load_in_memory
from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.ray import load_dataset

pytestmark = pytest.mark.mindspore

COUNT = 3000
GENERATOR = np.random.default_rng(0)
A, B = GENERATOR.normal(3, 2, COUNT), GENERATOR.integers(0, 1000, COUNT)
TABLE = pyarrow.table(
    {"a": A, "b": B, "city": GENERATOR.choice(["x", "y", "z"], COUNT), "label": np.where(A > 3, "high", "low")}
)


def write_parquet(path: Path) -> Path:
    directory = path / "parts"
    directory.mkdir()
    for index in range(3):
        parquet.write_table(TABLE.slice(index * 1000, 1000), str(directory / f"{index}.parquet"))
    return directory


def write_csv(path: Path) -> Path:
    csv.write_csv(TABLE, str(path / "data.csv"))
    return path / "data.csv"


def write_lines(path: Path) -> Path:
    file = path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))
    return file


def read_all(dataset: Dataset) -> dict[str, np.ndarray]:
    splits = [dataset.read_columns(split) for split in dataset.splits]
    return {name: np.concatenate([arrays[name] for arrays in splits]) for name in splits[0]}


@pytest.mark.parametrize("write", [write_parquet, write_csv, write_lines])
def test_columns_equal_those_loaded_in_memory(ray_session: Any, tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source = str(write(tmp_path))
    found, expected = load_dataset(source, tmp_path / "ray"), load_in_memory(source, tmp_path / "memory")
    assert (found.columns, found.labels, found.task) == (expected.columns, expected.labels, expected.task)
    assert found.storage == "parquet"
    assert [step["type"] for step in found.preprocessing["pre"]] == [
        step["type"] for step in expected.preprocessing["pre"]
    ]
    assert found.splits["test"] / COUNT == pytest.approx(0.2, abs=0.04)
    assert found.splits["validation"] / COUNT == pytest.approx(0.15, abs=0.04)
    (one, other) = (read_all(dataset) for dataset in (found, expected))
    orders = [np.lexsort(arrays["features_numbers"].T) for arrays in (one, other)]
    for name in one:
        np.testing.assert_array_equal(one[name][orders[0]], other[name][orders[1]])
    train = found.read_columns("train")["features_numbers"]
    assert found.statistics["features_numbers"]["mean"] == pytest.approx(train.mean(axis=0, dtype=np.float64), rel=1e-6)
    assert found.statistics["features_numbers"]["std"] == pytest.approx(train.std(axis=0, dtype=np.float64), rel=1e-6)
    inputs = read_samples(found, "train").inputs["features"]
    assert inputs[:, :2].mean(axis=0) == pytest.approx([0, 0], abs=1e-4)


def test_split_is_of_content_and_repeats(ray_session: Any, tmp_path: Path) -> None:
    source = str(write_parquet(tmp_path))
    first, second = (load_dataset(source, tmp_path / name) for name in ("first", "second"))
    other = load_dataset(source, tmp_path / "other", seed=7)
    assert first.digest == second.digest != other.digest


def test_group_is_in_one_split(ray_session: Any, tmp_path: Path) -> None:
    dataset = load_dataset(str(write_csv(tmp_path)), tmp_path / "out", split="group:b", ids=["b"])
    groups = [set(dataset.read_columns(split)["b"].tolist()) for split in dataset.splits]
    assert all(groups)
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]


def test_images_of_any_size(ray_session: Any, tmp_path: Path) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(30):
            pixels = GENERATOR.integers(0, 255, (8 + (index % 3 == 0), 9, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{index}.png")
    dataset = load_dataset(str(tmp_path / "images"), tmp_path / "out")
    assert (dataset.labels, sum(dataset.splits.values())) == (("cat", "dog"), 60)
    samples = read_samples(dataset, "train")
    assert samples.inputs["image"].shape[1:] == (3, 8, 9)
    # Files are read in random order, since neighbours have one class.
    assert len(set(samples.target[:10].tolist())) == 2


def test_missing_values_are_refused_or_dropped(ray_session: Any, tmp_path: Path) -> None:
    table = TABLE.set_column(0, "a", pyarrow.array([None, *A[1:]]))
    csv.write_csv(table, str(tmp_path / "data.csv"))
    with pytest.raises(UserError, match=r"missing values in a \(1"):
        load_dataset(str(tmp_path / "data.csv"), tmp_path / "out")
    dataset = load_dataset(str(tmp_path / "data.csv"), tmp_path / "out", missing="drop")
    assert (sum(dataset.splits.values()), dataset.report["dropped"]) == (COUNT - 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "time:a"}, "split: engine ray has random, group:FIELD and column:FIELD, got 'time:a'"),
        ({"missing": "median"}, "missing: engine ray has refuse, drop or a number, got 'median'"),
        ({"task": "ranking"}, "task: engine ray has"),
        ({"limit": 5}, "limit: engine ray has no limit, got 5"),
        ({"preprocessing": [{"type": "Tokenize", "length": 4}]}, "preprocessing: engine ray has fitted steps only"),
    ],
)
def test_options_that_need_all_samples_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        load_dataset(str(tmp_path), tmp_path / "out", **options)
