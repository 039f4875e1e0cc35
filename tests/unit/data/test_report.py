"""Findings about a dataset: statistics, constants, rounded integers, duplicates and missing classes."""

from __future__ import annotations

import numpy as np
import pytest

from kfp_mindspore.data.report import (
    compute_statistics,
    count_duplicates,
    list_constants,
    list_missing_classes,
    list_rounded,
    render_labels,
    render_steps,
)
from kfp_mindspore.formats.dataset import Column

TABLE = Column("features", "float32", (2,), fields=("age", "size"))
IMAGE = Column("image", "uint8", (2, 2))
TEXT = Column("city", "bytes", ())


def test_statistics_are_by_field_of_table_and_over_all_pixels() -> None:
    arrays = {
        "features": np.array([[1, 10], [3, 10], [5, 10]], np.float32),
        "image": np.array([[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[0, 0], [0, 0]]], np.uint8),
        "city": np.array([b"a", b"b", b"c"], object),
    }
    found = compute_statistics([TABLE, IMAGE, TEXT], arrays)
    assert found["features"] == {
        "min": [1, 10],
        "max": [5, 10],
        "mean": [3, 10],
        "std": pytest.approx([(8 / 3) ** 0.5, 0]),
    }
    assert found["image"]["mean"] == pytest.approx(28 / 12)
    assert (found["image"]["min"], found["image"]["max"]) == (0, 7)
    assert "city" not in found


@pytest.mark.parametrize("rows", [10, 1 << 16, (1 << 16) + 1, 200_000])
def test_statistics_of_large_values_with_small_spread(rows: int) -> None:
    """The squares of 1e6 ± 1 cancel in float32, and blocks are added."""
    values = (1e6 + np.arange(rows) % 3 - 1).astype(np.float32).reshape(-1, 1)
    (found,) = compute_statistics([Column("x", "float32", (1,))], {"x": values}).values()
    exact = values.astype(np.float64)
    assert found["mean"] == pytest.approx([exact.mean()], rel=1e-12)
    assert found["std"] == pytest.approx([exact.std()], rel=1e-6)


@pytest.mark.parametrize(
    ("column", "least", "greatest", "expected"),
    [
        (TABLE, [1.0, 2.0], [1.0, 3.0], ["age"]),
        (TABLE, [1.0, 2.0], [1.0, 2.0], ["age", "size"]),
        (Column("x", "float32", (2,)), [0.0, 1.0], [0.0, 2.0], ["x[0]"]),
        (IMAGE, 0, 0, ["image"]),
        (IMAGE, 0, 255, []),
        (Column("y", "int32", (), "target"), 1, 1, []),
    ],
)
def test_constant_features_are_named(column: Column, least: object, greatest: object, expected: list[str]) -> None:
    assert list_constants([column], {column.name: {"min": least, "max": greatest}}) == expected


@pytest.mark.parametrize(
    ("least", "greatest", "expected"),
    [
        ([0, 0], [2**24 - 1, 0], []),
        ([0, 0], [2**24, 0], ["age"]),
        ([-(2**24), 0], [0, 0], ["age"]),
        # The field size is no integer in its file.
        ([0, 0], [0, 2**30], []),
    ],
)
def test_integers_that_float32_rounds_are_named(least: list[int], greatest: list[int], expected: list[str]) -> None:
    assert list_rounded([TABLE], {"features": {"min": least, "max": greatest}}, {"age"}) == expected


def test_samples_with_features_of_training_sample_are_counted() -> None:
    """All feature columns decide, and the target does not."""
    columns = [TABLE, TEXT, Column("y", "int32", (), "target")]

    def make(numbers: list[list[float]], texts: list[bytes]) -> dict[str, np.ndarray]:
        return {
            "features": np.array(numbers, np.float32),
            "city": np.array(texts, object),
            "y": np.arange(len(texts), dtype=np.int32),
        }

    splits = {
        "train": make([[1, 2], [3, 4], [5, 6]], [b"a", b"b", b"c"]),
        "validation": make([[3, 4], [1, 2], [9, 9]], [b"b", b"a", b"a"]),
        # The same numbers with another text, the same numbers in another order.
        "test": make([[1, 2], [2, 1]], [b"b", b"a"]),
    }
    assert count_duplicates(columns, splits) == {"validation": 2, "test": 0}


def test_duplicates_of_images_are_counted() -> None:
    images = np.random.default_rng(0).integers(0, 256, (500, 2, 2), np.uint8).astype(np.uint8)
    assert count_duplicates([IMAGE], {"train": {"image": images}, "test": {"image": images[::5]}}) == {"test": 100}


def test_classes_without_sample_are_named_by_split() -> None:
    targets = {"train": np.array([0, 1, 2]), "validation": np.array([0, 0]), "test": np.array([2, 1])}
    assert list_missing_classes(("a", "b", "c"), targets) == {"validation": ["b", "c"], "test": ["a"]}


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (("cat", "dog"), "labels: 2 (cat, dog)"),
        (tuple(map(str, range(12))), "labels: 12 (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …)"),
        ((" ", "\n", "", "a"), "labels: 4 (' ', '\\n', '', a)"),
    ],
)
def test_labels_are_readable(labels: tuple[str, ...], text: str) -> None:
    assert render_labels(labels) == text


def test_steps_are_listed_with_columns() -> None:
    steps = [
        {"type": "OneHot", "column": "city", "values": ["a", "b"]},
        {"type": "Normalize", "column": "x", "mean": [0.0]},
        {"type": "Concatenate"},
    ]
    assert render_steps(steps) == "OneHot(city, 2 values), Normalize(x), Concatenate"
    assert render_steps([]) == "none"
