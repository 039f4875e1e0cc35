from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats.dataset import Column, Dataset, copy_dataset, write_dataset

COLUMNS = (
    Column("values", "float32", (2,), fields=("width", "height")),
    Column("text", "bytes", ()),
    Column("label", "int32", (), "target"),
)


def make_split(count: int) -> dict[str, np.ndarray]:
    text = np.empty(count, object)
    text[:] = [b"sample %d" % index for index in range(count)]
    values = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return {"values": values, "text": text, "label": np.arange(count, dtype=np.int32) % 2}


@pytest.fixture
def written(tmp_path: Path) -> Dataset:
    return write_dataset(
        tmp_path / "written",
        name="pairs",
        task="classification",
        labels=["even", "odd"],
        columns=COLUMNS,
        splits={"train": make_split(6), "test": make_split(3)},
        preprocessing={"pre": []},
        report={"duplicates": 0},
    )


def test_description_is_restored(written: Dataset) -> None:
    assert (written.name, written.task, written.labels) == ("pairs", "classification", ("even", "odd"))
    assert written.columns == COLUMNS
    assert written.list_columns("target") == COLUMNS[2:]
    assert (written.splits, written.seed, written.storage) == ({"train": 6, "test": 3}, 42, "npz")
    assert (written.preprocessing, written.report) == ({"pre": []}, {"duplicates": 0})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 5),
    data=st.data(),
    names=st.lists(st.text("aé file/.", min_size=1, max_size=6), min_size=1, max_size=3, unique=True),
)
def test_columns_are_read_as_written(tmp_path: Path, count: int, data: st.DataObject, names: list[str]) -> None:
    columns, arrays = [], {}
    for name in names:
        dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int64", "uint8", "bool", "bytes"]))
        shape = () if dtype == "bytes" else data.draw(st.sampled_from([(), (3,), (1, 2)]))
        columns.append(Column(name, dtype, shape))
        if dtype == "bytes":
            arrays[name] = np.empty(count, object)
            arrays[name][:] = data.draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count))
        else:
            arrays[name] = data.draw(arrays_of.arrays(dtype, (count, *shape)))
    given = {"name": "any", "task": "none", "columns": columns, "splits": {"train": arrays}}
    written = write_dataset(tmp_path / "any", **given)
    read = written.read_columns("train")
    assert list(read) == names
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    again = write_dataset(tmp_path / "again", **given)
    assert (again.digest, again.digests) == (written.digest, written.digests)


def test_digest_depends_on_content_only(written: Dataset, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"task": "none", "columns": COLUMNS, "splits": {"train": make_split(6)}}
    first = write_dataset(tmp_path / "data", name="first", report={"rows": 6}, **parts)
    assert write_dataset(tmp_path / "data", name="second", seed=1, **parts).digest == first.digest
    parts["splits"]["train"]["text"][0] = b"another"
    assert write_dataset(tmp_path / "data", name="first", **parts).digest != first.digest


def test_version_1_is_opened_as_version_2(tmp_path: Path) -> None:
    features, labels = np.zeros((4, 1, 2, 2), np.float32), np.array([0, 1, 1, 0], np.int32)
    np.savez(tmp_path / "train.npz", features=features, labels=labels)
    description = {
        "name": "old",
        "features": {"name": "image", "dtype": "float32", "shape": [1, 2, 2]},
        "labels": ["no", "yes"],
        "splits": {"train": 4},
        "seed": 3,
        "digests": {"train.npz": files.digest_file(tmp_path / "train.npz")},
    }
    files.write_json(tmp_path / "dataset.json", description)
    dataset = Dataset.open(tmp_path)
    assert (dataset.task, dataset.labels, dataset.seed) == ("classification", ("no", "yes"), 3)
    assert dataset.columns == (Column("image", "float32", (1, 2, 2)), Column("label", "int32", (), "target"))
    read = dataset.read_columns("train")
    np.testing.assert_array_equal(read["image"], features)
    np.testing.assert_array_equal(read["label"], labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "clustering"}, "task: must be one of classification, .* got 'clustering'"),
        ({"labels": ["only"]}, "train: label: must be 0 to 0, got 0 to 1"),
        ({"labels": []}, "labels: a classification needs its class names"),
        ({"columns": COLUMNS[2:]}, "columns: need at least one of role 'feature'"),
        ({"columns": (*COLUMNS, Column("b", "int32", (), "target"))}, "at most one of role 'target', got label, b"),
        ({"columns": (*COLUMNS, Column("x", "float32", ()))}, "train: no array 'x', found values, text, label"),
        ({"columns": (Column("values", "float64", (2,)),)}, "train: values: dtype must be float64, got float32"),
        ({"columns": (Column("values", "float32", (3,)),)}, r"train: values: shape must be \(N, 3\), got \(6, 2\)"),
        ({"columns": (Column("values", "float32", (2,), "x"),)}, "column values: role must be one of feature, .* 'x'"),
        ({"columns": COLUMNS + COLUMNS[:1]}, "column values: must be named once"),
        ({"splits": {"train": {**make_split(6), "text": make_split(5)["text"]}}}, "train: columns must have as many"),
    ],
)
def test_invalid_columns_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    valid = {"task": "classification", "labels": ["a", "b"], "columns": COLUMNS, "splits": {"train": make_split(6)}}
    with pytest.raises(ValidationError, match=message):
        write_dataset(tmp_path / "data", name="bad", **{**valid, **changes})
    assert not (tmp_path / "data").exists()


def test_flipped_bit_is_detected_by_read_and_copy(written: Dataset, tmp_path: Path) -> None:
    assert copy_dataset(written, tmp_path / "copy").digest == written.digest
    file = written.path / "train.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptBundleError, match=r"train\.npz"):
        written.read_columns("train")
    with pytest.raises(CorruptBundleError, match=r"train\.npz"):
        copy_dataset(written, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_error_names_missing_part(written: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such dataset directory"):
        Dataset.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"dataset\.json is missing"):
        Dataset.open(tmp_path / "empty")
    with pytest.raises(UserError, match="no split 'dev', found train, test"):
        written.read_columns("dev")
    (written.path / "test.npz").unlink()
    with pytest.raises(UserError, match=r"test\.npz missing"):
        Dataset.open(written.path)


@pytest.mark.parametrize("field", ["name", "task", "columns", "labels", "splits", "seed", "digests", "preprocessing"])
def test_error_names_missing_field(written: Dataset, field: str) -> None:
    description = json.loads((written.path / "dataset.json").read_text())
    del description[field]
    (written.path / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=f"field '{field}' is missing"):
        Dataset.open(written.path)


def test_newer_version_is_refused(written: Dataset) -> None:
    description = json.loads((written.path / "dataset.json").read_text())
    (written.path / "dataset.json").write_text(json.dumps({**description, "version": 4}))
    with pytest.raises(UserError, match="version must be at most 3, got 4"):
        Dataset.open(written.path)
