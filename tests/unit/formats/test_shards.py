"""Parquet shards: what is written is read, whole and by rows, within a block cache."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, UserError, ValidationError
from kfp_mindspore.formats import shards
from kfp_mindspore.formats.dataset import Column, Dataset, copy_dataset, write_dataset

COLUMNS = (
    Column("image", "float32", (2, 3)),
    Column("text", "bytes", ()),
    Column("list", "float32", (-1, 2)),
    Column("pair", "bytes", (2,)),
    Column("label", "int32", (), "target"),
    Column("flag", "bool", (), "id"),
)


def _objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _make(count: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "image": generator.random((count, 2, 3), np.float32),
        "text": _objects([b"x" * (index % 7) for index in range(count)]),
        "list": _objects([generator.random((index % 5 + 1, 2), np.float32) for index in range(count)]),
        "pair": np.array([[b"a", b"%d" % index] for index in range(count)], object).reshape(count, 2),
        "label": np.arange(count, dtype=np.int32) % 2,
        "flag": np.arange(count) % 3 == 0,
    }


def _equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].shape == array.shape
        and found[name].dtype == array.dtype
        and all(np.array_equal(one, other) for one, other in zip(found[name], array, strict=True))
        for name, array in expected.items()
    )


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """100 rows in blocks of a few rows, so that there are several shards."""
    monkeypatch.setattr(shards, "_BLOCK_BYTES", 300)
    splits = {"train": _make(100), "validation": _make(5), "test": _make(0)}
    options = {"name": "x", "task": "classification", "columns": COLUMNS, "labels": ["a", "b"]}
    return write_dataset(tmp_path / "data", splits=splits, storage="parquet", **options)


def test_splits_are_read_as_written(dataset: Dataset) -> None:
    assert len(dataset.shards["train"]) > 1
    assert (dataset.version, dataset.splits) == (3, {"train": 100, "validation": 5, "test": 0})
    assert _equal(dataset.read_columns("train"), _make(100))
    assert _equal(dataset.read_columns("train", 7), {name: array[:7] for name, array in _make(100).items()})
    assert len(dataset.read_columns("test")["image"]) == 0


def test_rows_are_taken_in_any_order_and_each_block_of_a_window_is_read_once(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = dataset.open_shards("train")
    reads = []
    read = reader._read_block
    monkeypatch.setattr(reader, "_read_block", lambda place: reads.append(place) or read(place))
    rows = dataset.block_rows * shards.WINDOW_BLOCKS
    order = np.concatenate(
        [np.random.default_rng(1).permutation(min(rows, 100 - start)) + start for start in (0, rows)]
    )
    for start in range(0, len(order), 10):
        chosen = order[start : start + 10]
        assert _equal(reader.take(chosen), {name: array[chosen] for name, array in _make(100).items()})
    assert len(reads) == len(set(reads)) == -(-len(order) // dataset.block_rows)


def test_copy_has_same_digest_and_damage_is_detected(dataset: Dataset, tmp_path: Path) -> None:
    copied = copy_dataset(dataset, tmp_path / "copy")
    assert copied.digest == dataset.digest
    file = copied.path / next(iter(copied.shards["train"]))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptBundleError, match=r"train-00000\.parquet: sha256"):
        copied.open_shards("train").take(np.array([0]))
    # A digest of the damaged file: Arrow refuses it.
    digests = {**copied.digests, file.name: files.digest_file(file)}
    with pytest.raises(UserError, match=r"train-00000\.parquet: cannot be read"):
        dataclasses.replace(copied, digests=digests).read_columns("train")


def test_wrong_description_is_refused(dataset: Dataset) -> None:
    description = files.read_json(dataset.path / "dataset.json")
    for change, message in (
        ({"block_rows": 0}, "block_rows: must be at least 1, got 0"),
        ({"splits": {**description["splits"], "train": 99}}, "shards: train: must have 99 rows together, got 100"),
        ({"version": 4}, "version must be at most 3, got 4"),
    ):
        files.write_json(dataset.path / "dataset.json", {**description, **change})
        with pytest.raises(UserError, match=message):
            Dataset.open(dataset.path)


def test_lists_with_two_free_sizes_are_refused(tmp_path: Path) -> None:
    rows = _objects([np.zeros((2, 3), np.float32), np.zeros((1, 2), np.float32)])
    columns = [Column("x", "float32", (-1, -1))]
    with pytest.raises(ValidationError, match="column x: storage parquet has lists with one free size only"):
        write_dataset(
            tmp_path / "d", name="x", task="none", columns=columns, splits={"train": {"x": rows}}, storage="parquet"
        )


_STREAM = """
import resource, sys
import numpy as np
import pyarrow
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.shards import WINDOW_BLOCKS
from kfp_mindspore.training.workers.sampler import BlockSampler

limit = int(sys.argv[2]) << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
dataset = Dataset.open(sys.argv[1])
reader = dataset.open_shards("train")
count = dataset.splits["train"]
sampler = BlockSampler(count, 256, 1, drop_last=False, blocks=reader.block_sizes, window=WINDOW_BLOCKS)
total = np.zeros((), np.int64)
for indices in sampler.read(0):
    total += reader.take(indices)["id"].sum()
assert total == count * (count - 1) // 2, total
try:
    dataset.read_columns("train")
except MemoryError:
    print("streamed, and does not fit")
"""


def test_dataset_larger_than_memory_limit_is_streamed(tmp_path: Path) -> None:
    """650 MB of rows are read in shuffled order by a process that may allocate 300 MB."""
    columns = [Column("x", "float32", (16384,)), Column("id", "int32", (), "id")]
    count, size = 10_000, 1_000
    from kfp_mindspore.formats.dataset import write_shards

    parts = (
        (
            "train",
            {"x": np.full((size, 16384), start, np.float32), "id": np.arange(start, start + size, dtype=np.int32)},
        )
        for start in range(0, count, size)
    )
    description = {"name": "large", "task": "none", "labels": [], "columns": [], "preprocessing": {}}
    description |= {
        "columns": [dataclasses.asdict(column) for column in columns],
        "seed": 0,
        "statistics": {},
        "report": {},
    }
    write_shards(tmp_path / "large", description, ["train"], columns, parts, block_rows=64)
    command = [sys.executable, "-c", _STREAM, str(tmp_path / "large"), "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "streamed, and does not fit"), done.stderr
