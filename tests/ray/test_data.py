"""load_dataset by Ray: the same columns, statistics and preprocessing as in memory, as shards split by hashes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, timedelta
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
from kfp_mindspore.stores.artifact_store import ArtifactStore
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store

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


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_block_without_complete_sample_is_dropped(ray_session: Any, tmp_path: Path, format: str) -> None:
    directory = tmp_path / "parts"
    directory.mkdir()
    write = {"parquet": parquet.write_table, "csv": csv.write_csv}[format]
    for index in range(3):
        table = TABLE.slice(index * 1000, 1000)
        if index == 1:
            table = table.set_column(0, "a", pyarrow.nulls(1000, pyarrow.float64()))
        write(table, str(directory / f"{index}.{format}"))
    for split in ("random", "stratified"):
        dataset = load_dataset(
            str(directory), tmp_path / "out", missing="drop", split=split, target="label", format=format
        )
        assert (sum(dataset.splits.values()), dataset.report["dropped"]) == (2000, 1000)


def test_source_without_complete_sample_is_refused(ray_session: Any, tmp_path: Path) -> None:
    table = TABLE.set_column(0, "a", pyarrow.nulls(COUNT, pyarrow.float64()))
    parquet.write_table(table, str(tmp_path / "data.parquet"))
    for split in ("random", "time:b"):
        with pytest.raises(UserError, match="each sample has a missing value"):
            load_dataset(str(tmp_path / "data.parquet"), tmp_path / "out", missing="drop", split=split)


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


def test_time_split_of_texts_has_latest_samples_in_test(ray_session: Any, tmp_path: Path) -> None:
    days = [date(2015, 1, 1) + timedelta(days=int(day)) for day in B]
    table = TABLE.append_column("day", pyarrow.array([day.strftime("%d.%m.%Y") for day in days]))
    csv.write_csv(table, str(tmp_path / "data.csv"), csv.WriteOptions(delimiter=";"))
    dataset = load_dataset(str(tmp_path / "data.csv"), tmp_path / "out", split="time:day", ids=["a"], features=["b"])
    ordered = {split: dataset.read_columns(split)["features"] for split in dataset.splits}
    assert ordered["train"].max() < ordered["validation"].min()
    assert ordered["validation"].max() < ordered["test"].min()
    spans = dataset.report["moments"]["splits"]
    assert spans["train"][0] == min(days).strftime("%d.%m.%Y")
    assert spans["test"][1] == max(days).strftime("%d.%m.%Y")


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


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        store.refuse_strangers()
        yield store


@pytest.fixture
def credentials(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's credentials; Ray's workers have none."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize("write", [write_parquet, write_csv])
def test_objects_are_read_by_workers(
    ray_session: Any,
    tmp_path: Path,
    store: ObjectStore,
    credentials: None,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path], Path],
) -> None:
    source = write(tmp_path)
    for file in source.rglob("*") if source.is_dir() else [source]:
        store.put(file.relative_to(tmp_path).as_posix(), file.read_bytes())
    # Nothing is downloaded as a whole.
    monkeypatch.delattr(ArtifactStore, "download")
    found = load_dataset(f"s3://{BUCKET}/{source.name}", tmp_path / "store")
    expected = load_dataset(str(source), tmp_path / "disk")
    assert found.splits == expected.splits
    for split in found.splits:
        for name, array in expected.read_columns(split).items():
            np.testing.assert_array_equal(found.read_columns(split)[name], array)


def test_image_folders_in_store(ray_session: Any, tmp_path: Path, store: ObjectStore, credentials: None) -> None:
    from PIL import Image

    for index in range(40):
        content = io.BytesIO()
        Image.fromarray(GENERATOR.integers(0, 255, (4, 5), np.uint8)).save(content, "PNG")
        split, label = ("test", "train")[index % 4 > 0], ("cat", "dog")[index // 4 % 2]
        store.put(f"images/{split}/{label}/{index}.png", content.getvalue())
    dataset = load_dataset(f"s3://{BUCKET}/images", tmp_path / "out")
    assert (dataset.labels, dataset.splits) == (("cat", "dog"), {"train": 30, "validation": 0, "test": 10})


@pytest.mark.parametrize(
    ("key", "message"),
    [("absent.csv", "nothing there"), ("data.npz", "engine ray reads .*, got npz"), ("data.bin", "unknown format")],
)
def test_wrong_object_is_named_before_ray_starts(
    tmp_path: Path, store: ObjectStore, credentials: None, key: str, message: str
) -> None:
    for name in ("data.npz", "data.bin"):
        store.put(name, b"")
    with pytest.raises(UserError, match=message):
        load_dataset(f"s3://{BUCKET}/{key}", tmp_path / "out")


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
    (tmp_path / "data").mkdir()
    with pytest.raises(ValidationError, match=message):
        load_dataset(str(tmp_path / "data"), tmp_path / "out", **options)
