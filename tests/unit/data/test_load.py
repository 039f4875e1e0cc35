from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.formats.dataset import Dataset


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset("digits", tmp_path_factory.mktemp("data") / "digits")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [("digits", (1, 8, 8), 10, 1797), ("breast_cancer", (30,), 2, 569), ("wine", (13,), 3, 178)],
)
def test_built_in_sets_are_split_and_described(
    name: str, shape: tuple[int, ...], classes: int, count: int, tmp_path: Path
) -> None:
    dataset = load_dataset(name, tmp_path / name)

    assert dataset.name == name
    assert dataset.columns[0].shape == shape
    assert len(dataset.labels) == classes
    assert sum(dataset.splits.values()) == count
    for split in ("train", "validation", "test"):
        samples = read_samples(dataset, split)
        (features,), labels = samples.inputs.values(), samples.target
        assert features.shape == (dataset.splits[split], *shape)
        assert features.dtype == np.float32
        assert labels.dtype == np.int32
        assert set(labels) == set(range(classes))


def test_digits_are_scaled_stratified_and_disjoint(digits: Dataset) -> None:
    samples = [read_samples(digits, split) for split in digits.splits]
    everything = np.concatenate([one.inputs["image"] for one in samples])
    assert everything.min() == 0
    assert everything.max() == 1
    shares = [np.bincount(labels) / len(labels) for labels in (one.target for one in samples)]
    assert np.abs(shares[0] - shares[1]).max() < 0.01
    assert np.abs(shares[0] - shares[2]).max() < 0.01
    images = [{image.tobytes() for image in one.inputs["image"]} for one in samples]
    assert not images[0] & images[1]
    assert not images[0] & images[2]
    assert not images[1] & images[2]


def test_tables_are_standardised_by_the_training_split_alone(tmp_path: Path) -> None:
    dataset = load_dataset("wine", tmp_path / "wine")
    train, test = (read_samples(dataset, split).inputs["features"] for split in ("train", "test"))
    assert np.abs(train.mean(axis=0)).max() < 1e-5
    assert np.abs(train.std(axis=0) - 1).max() < 1e-5
    assert np.abs(test.mean(axis=0)).max() > 1e-3


def test_files_depend_on_the_seed_only(digits: Dataset, tmp_path: Path) -> None:
    again = load_dataset("digits", tmp_path / "again")
    other = load_dataset("digits", tmp_path / "other", seed=1)
    assert again.digests == digits.digests
    assert other.digests["test.npz"] != digits.digests["test.npz"]


def test_loading_replaces_an_existing_dataset(tmp_path: Path) -> None:
    target = tmp_path / "data"
    load_dataset("wine", target)
    (target / "stray").touch()
    assert load_dataset("breast_cancer", target).name == "breast_cancer"
    assert sorted(path.name for path in target.iterdir()) == ["dataset.json", "test.npz", "train.npz", "validation.npz"]


@pytest.mark.parametrize("spell", [str, lambda path: f"file://{path}", lambda path: f"file://{path}/"])
def test_dataset_directory_is_copied_from_path_or_uri(
    digits: Dataset, tmp_path: Path, spell: Callable[[Path], str]
) -> None:
    copied = load_dataset(spell(digits.path), tmp_path / "copied")
    assert copied.digests == digits.digests
    assert copied.labels == digits.labels


def test_three_bare_splits_are_described(tmp_path: Path) -> None:
    for count, split in enumerate(("train", "validation", "test"), start=2):
        np.savez(tmp_path / f"{split}.npz", features=np.full((count, 4), count), labels=np.arange(count))
    loaded = load_dataset(str(tmp_path), tmp_path / "loaded")
    assert loaded.splits == {"train": 2, "validation": 3, "test": 4}
    assert loaded.columns[0].shape == (4,)
    assert np.array_equal(read_samples(loaded, "test").inputs["features"], np.full((4, 4), 4, np.float32))


def test_one_file_of_arrays_is_split(tmp_path: Path) -> None:
    labels = np.arange(90) % 3
    np.savez(tmp_path / "mine.npz", features=np.random.default_rng(0).random((90, 4)), labels=labels)
    loaded = load_dataset(str(tmp_path / "mine.npz"), tmp_path / "loaded", validation_fraction=0.1, test_fraction=0.3)
    assert loaded.name == "mine"
    assert loaded.splits == {"train": 54, "validation": 9, "test": 27}
    assert loaded.labels == ("0", "1", "2")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(30, 120),
    classes=st.integers(1, 3),
    validation=st.floats(0.15, 0.4),
    test=st.floats(0.15, 0.4),
    seed=st.integers(0, 2**31),
)
def test_every_sample_ends_in_exactly_one_split(
    tmp_path: Path, count: int, classes: int, validation: float, test: float, seed: int
) -> None:
    features = np.arange(count, dtype=np.float32)[:, None]
    np.savez(tmp_path / "all.npz", features=features, labels=np.arange(count) % classes)
    dataset = load_dataset(
        str(tmp_path / "all.npz"),
        tmp_path / "split",
        seed=seed,
        validation_fraction=validation,
        test_fraction=test,
    )
    seen = np.concatenate([read_samples(dataset, split).inputs["features"].ravel() for split in dataset.splits])
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction: must be between 0 and 1, got 0.0"),
        ({"test_fraction": 1.5}, "test_fraction: must be between 0 and 1, got 1.5"),
        ({"validation_fraction": 0.6, "test_fraction": 0.5}, "validation_fraction + test_fraction: must be below 1"),
    ],
)
def test_fractions_are_validated_by_name(arguments: dict[str, float], field: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        load_dataset("digits", tmp_path / "data", **arguments)
    assert field in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["mnist", "/nowhere/at/all", "file:///nowhere/at/all"])
def test_error_names_the_unknown_source(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=name):
        load_dataset(name, tmp_path / "data")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": np.zeros((4, 2))}, "no array 'labels'"),
        ({"features": np.zeros((4, 2)), "labels": np.zeros(4)}, "integer labels, got float64 and float64"),
        ({"features": np.zeros((4, 2)), "labels": np.array([0, 0, 0, 1])}, "cannot split 4 samples by label"),
        ({"features": np.array([object()] * 4), "labels": np.zeros(4, int)}, "plain arrays"),
    ],
)
def test_invalid_arrays_are_rejected(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UserError, match=message):
        load_dataset(str(tmp_path / "bad.npz"), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_file_that_is_no_archive_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"not a zip file at all")
    with pytest.raises(UserError, match=r"bad\.npz"):
        load_dataset(str(tmp_path / "bad.npz"), tmp_path / "data")
