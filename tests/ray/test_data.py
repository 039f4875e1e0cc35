"""load_dataset by Ray: the same columns, statistics and preprocessing as in memory, as shards split by hashes."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_median_and_mean_fill_as_in_memory(ray_session: Any, tmp_path: Path) -> None:
    table = TABLE.set_column(0, "a", pyarrow.array([None if index % 7 == 0 else a for index, a in enumerate(A)]))
    names = np.array(["train", "validation", "test"])[np.arange(COUNT) % 3]
    csv.write_csv(table.append_column("part", pyarrow.array(names)), str(tmp_path / "data.csv"))
    for rule in ("mean", "median"):
        found, expected = (
            load(str(tmp_path / "data.csv"), tmp_path / name, missing=rule, split="column:part")
            for load, name in ((load_dataset, "ray"), (load_in_memory, "memory"))
        )
        filled = found.report["filled"]["features_numbers"]
        assert filled == pytest.approx(expected.report["filled"]["features_numbers"], rel=1e-5)
        for key, values in expected.statistics["features_numbers"].items():
            assert found.statistics["features_numbers"][key] == pytest.approx(values, rel=1e-4)
        assert not np.isnan(read_all(found)["features_numbers"]).any()


def test_time_split_has_latest_samples_in_test(ray_session: Any, tmp_path: Path) -> None:
    dataset = load_dataset(str(write_csv(tmp_path)), tmp_path / "out", split="time:a", ids=["b"], features=["a"])
    ordered = {split: dataset.read_columns(split)["features"] for split in dataset.splits}
    assert ordered["train"].max() < ordered["validation"].min()
    assert ordered["validation"].max() < ordered["test"].min()
    assert [dataset.splits[split] for split in ("train", "validation", "test")] == [1950, 450, 600]


def test_stratified_split_and_limit_keep_class_shares(ray_session: Any, tmp_path: Path) -> None:
    labels = np.where(np.arange(COUNT) % 10 == 0, "rare", "often")
    csv.write_csv(TABLE.set_column(3, "label", pyarrow.array(labels)), str(tmp_path / "data.csv"))
    source = str(tmp_path / "data.csv")
    dataset = load_dataset(source, tmp_path / "out", split="stratified")
    counts = {split: np.bincount(dataset.read_columns(split)["label"]).tolist() for split in dataset.splits}
    assert counts == {"train": [1755, 195], "validation": [405, 45], "test": [540, 60]}
    kept = load_dataset(source, tmp_path / "kept", split="stratified", limit=1000)
    assert sum(kept.splits.values()) == 1000
    assert kept.splits["test"] == pytest.approx(200, abs=2)
    assert (kept.report["limit"], kept.report["samples"]) == (1000, COUNT)


def test_several_targets_are_labels_or_numbers(ray_session: Any, tmp_path: Path) -> None:
    table = pyarrow.table({"a": A, "hot": (A > 3).astype(int), "many": (B > 500).astype(int), "b": B})
    csv.write_csv(table, str(tmp_path / "data.csv"))
    labels = load_dataset(str(tmp_path / "data.csv"), tmp_path / "labels", target=["hot", "many"])
    assert (labels.task, labels.labels) == ("multi_label", ("hot", "many"))
    found = read_all(labels)
    np.testing.assert_array_equal(found["target"][:, 1], found["features"][:, 1] > 500)
    assert load_dataset(str(tmp_path / "data.csv"), tmp_path / "numbers", target=["hot", "b"]).task == "regression"


def test_missing_source_is_named_before_ray_starts(tmp_path: Path) -> None:
    code = """
import sys, ray
from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.ray import load_dataset
try:
    load_dataset(sys.argv[1], "out")
except NotFoundError as error:
    assert not ray.is_initialized() and sys.argv[1] in str(error)
    sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "missing.csv")], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "contiguous"}, "split: engine ray has no order of samples, which contiguous needs"),
        ({"task": "ranking"}, "task: engine ray has"),
        ({"preprocessing": [{"type": "Tokenize", "length": 4}]}, "preprocessing: engine ray has fitted steps only"),
    ],
)
def test_options_that_need_all_samples_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        load_dataset(str(tmp_path), tmp_path / "out", **options)
