"""Splits: which sample is in which split, by mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from kfp_mindspore.data.split import MODES, check_fractions, parse_mode, parse_shard, split_samples
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import SPLITS


def split(count: int, kind: str, **options: Any) -> dict[str, list[int]]:
    """Split samples by default into 70, 20 and 10 %."""
    given: dict[str, Any] = {"values": None, "classes": None, "given": None, "limit": 0, "seed": 0, **options}
    parts = split_samples(count, kind, **{"fractions": (0.2, 0.1), **given})
    return {name: part.tolist() for name, part in parts.items()}


def count(parts: dict[str, list[int]]) -> list[int]:
    return [len(parts[name]) for name in SPLITS]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("stratified", ("stratified", "")),
        ("random", ("random", "")),
        ("contiguous", ("contiguous", "")),
        ("time:day", ("time", "day")),
        ("group:user:id", ("group", "user:id")),
        ("column:split", ("column", "split")),
    ],
)
def test_mode_has_kind_and_field(mode: str, expected: tuple[str, str]) -> None:
    assert parse_mode(mode) == expected


@pytest.mark.parametrize("mode", ["", "shuffled", "time", "time:", "group", "column:", "random:day", "Stratified"])
def test_mode_without_or_with_unneeded_field_is_refused(mode: str) -> None:
    with pytest.raises(ValidationError, match="split: must be one of stratified, random") as caught:
        parse_mode(mode)
    assert repr(mode) in str(caught.value)
    assert all(name in str(caught.value) for name in MODES)


@pytest.mark.parametrize(("shard", "expected"), [("1/1", (1, 1)), ("2/4", (2, 4)), ("10/10", (10, 10))])
def test_shard_has_number_and_count(shard: str, expected: tuple[int, int]) -> None:
    assert parse_shard(shard) == expected


@pytest.mark.parametrize("shard", ["", "1", "0/4", "5/4", "-1/4", "1/0", "a/b", "1/2/3", " 1/2", "1.0/2"])
def test_invalid_shard_is_refused(shard: str) -> None:
    with pytest.raises(ValidationError, match="shard: must be a number from 1 on"):
        parse_shard(shard)


@pytest.mark.parametrize(
    ("validation", "test", "message"),
    [
        (0, 0.1, "validation_fraction: must be between 0 and 1, got 0"),
        (0.1, 1, "test_fraction: must be between 0 and 1, got 1"),
        (-0.1, 0.1, "validation_fraction: must be between 0 and 1, got -0.1"),
        (float("nan"), 0.1, "validation_fraction: must be between 0 and 1, got nan"),
        (0.5, 0.5, "validation_fraction + test_fraction: must be below 1, got 1.0"),
    ],
)
def test_fractions_leave_samples_for_training(validation: float, test: float, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check_fractions(validation, test)
    assert message in str(caught.value)


def test_smallest_and_largest_fractions_are_accepted() -> None:
    check_fractions(0.001, 0.001)
    check_fractions(0.9, 0.09)


@pytest.mark.parametrize(
    ("samples", "fractions", "counts"),
    [
        (100, (0.2, 0.1), [70, 20, 10]),
        # 0.1 * 3 is 0.30000000000000004 in floating point.
        (30, (0.1, 0.1), [24, 3, 3]),
        # A part of a sample is a whole one: no split is empty.
        (10, (0.01, 0.01), [8, 1, 1]),
        (3, (0.1, 0.1), [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("kind", ["random", "contiguous"])
def test_counts_follow_fractions(samples: int, fractions: tuple[float, float], counts: list[int], kind: str) -> None:
    parts = split(samples, kind, fractions=fractions)
    assert count(parts) == counts
    assert sorted(index for part in parts.values() for index in part) == list(range(samples))


@pytest.mark.parametrize("kind", ["random", "contiguous"])
def test_too_few_samples_are_counted_in_message(kind: str) -> None:
    with pytest.raises(UserError, match="2 samples are too few for 1 and 1 more"):
        split(2, kind)


def test_contiguous_split_keeps_order() -> None:
    parts = split(10, "contiguous")
    assert parts == {"train": list(range(7)), "validation": [7, 8], "test": [9]}


def test_random_split_depends_on_seed() -> None:
    assert split(50, "random", seed=1) == split(50, "random", seed=1) != split(50, "random", seed=2)


def test_newest_samples_are_test_split() -> None:
    days = np.array([5, 1, 9, 3, 7, 0, 8, 2, 6, 4])
    parts = split(10, "time", values=days)
    assert [sorted(days[parts[name]].tolist()) for name in SPLITS] == [list(range(7)), [7, 8], [9]]


def test_equal_times_keep_order() -> None:
    assert split(10, "time", values=np.zeros(10))["train"] == list(range(7))


@pytest.mark.parametrize("seed", range(5))
def test_stratified_splits_have_shares_of_classes(seed: int) -> None:
    classes = np.repeat([0, 1, 2], [200, 60, 40])
    parts = split(300, "stratified", classes=classes, seed=seed)
    assert count(parts) == [210, 60, 30]
    for name, shares in zip(SPLITS, ([140, 42, 28], [40, 12, 8], [20, 6, 4]), strict=True):
        assert np.bincount(classes[parts[name]]).tolist() == shares


@pytest.mark.parametrize("seed", range(30))
def test_stratified_split_equals_scikit_learns(seed: int) -> None:
    generator = np.random.default_rng(seed)
    classes = generator.choice(list("abcde"), 200, p=generator.dirichlet(np.full(5, 5.0)))
    rest, test = train_test_split(np.arange(200), test_size=20, stratify=classes, random_state=seed)
    train, validation = train_test_split(rest, test_size=40, stratify=classes[rest], random_state=seed)
    expected = dict(zip(SPLITS, (train.tolist(), validation.tolist(), test.tolist()), strict=True))
    assert split(200, "stratified", classes=classes, seed=seed) == expected


def test_classes_outnumber_test_split() -> None:
    with pytest.raises(UserError, match="1 samples are fewer than the 2 classes"):
        split(10, "stratified", classes=np.arange(10) % 2)


def test_class_with_one_sample_names_random_split() -> None:
    with pytest.raises(UserError, match="cannot split 20 samples by label: class 1 has one sample only") as caught:
        split(20, "stratified", classes=np.array([0] * 19 + [1]))
    assert "--split random" in caught.value.hint


@pytest.mark.parametrize("seed", range(5))
def test_group_is_in_one_split(seed: int) -> None:
    groups = np.arange(100) // 4
    parts = split(100, "group", values=groups, seed=seed)
    found = [set(groups[parts[name]].tolist()) for name in SPLITS]
    assert all(found)
    assert sum(map(len, found)) == len(set.union(*found)) == 25
    assert count(parts) == [68, 20, 12], "whole groups of four: 10 samples are three groups"


def test_one_large_group_leaves_groups_for_other_splits() -> None:
    """A split takes no group that another one needs."""
    groups = np.array(["a"] * 98 + ["b", "c"])
    parts = split(100, "group", values=groups)
    assert sum(count(parts)) == 100
    assert all(count(parts))


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(UserError, match="2 groups are too few for 3 splits"):
        split(100, "group", values=np.arange(100) % 2)


@pytest.mark.parametrize(
    "names",
    [
        ("train", "validation", "test"),
        ("TRAIN", " val ", "Test"),
        ("training", "dev", "test"),
        ("train", "eval", "test"),
        (b"train", b"valid", b"test"),
    ],
)
def test_column_names_splits(names: tuple[Any, ...]) -> None:
    values = np.array([names[0], names[1], names[2], names[0]], object)
    assert split(4, "column", values=values) == {"train": [0, 3], "validation": [1], "test": [2]}


def test_unknown_split_name_is_refused() -> None:
    with pytest.raises(UserError, match="names must be train, validation, test, got 'holdout'"):
        split(3, "column", values=np.array(["train", "holdout", "test"], object))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0] * 20 + [2] * 5, [16, 4, 5]),
        ([0] * 20 + [1] * 5, [18, 5, 2]),
        ([0] * 20, [14, 4, 2]),
    ],
)
def test_missing_split_is_taken_from_training_split(given: list[int], expected: list[int]) -> None:
    parts = split(len(given), "random", given=np.array(given, np.int8))
    assert count(parts) == expected
    for name, index in zip(SPLITS, range(3), strict=True):
        if index in given and index:
            assert [given[sample] for sample in parts[name]] == [index] * len(parts[name])
    assert sorted(index for part in parts.values() for index in part) == list(range(len(given)))


def test_source_without_training_samples_is_refused() -> None:
    with pytest.raises(UserError, match="no sample is in the split train"):
        split(4, "random", given=np.array([1, 1, 2, 2], np.int8))


@pytest.mark.parametrize("kind", ["random", "contiguous", "time"])
def test_limit_keeps_some_samples(kind: str) -> None:
    parts = split(1000, kind, values=np.arange(1000), limit=50)
    kept = {index for part in parts.values() for index in part}
    assert len(kept) == 50
    assert count(parts) == [35, 10, 5]
    assert max(kept) > 500, "from the whole source"


def test_limit_keeps_shares_of_classes() -> None:
    classes = np.repeat([0, 1], [900, 100])
    parts = split(1000, "stratified", classes=classes, limit=100)
    assert np.bincount(classes[[index for part in parts.values() for index in part]]).tolist() == [90, 10]


def test_limit_of_given_splits_applies_to_each() -> None:
    given = np.repeat(np.array([0, 1, 2], np.int8), [60, 30, 5])
    assert count(split(95, "random", given=given, limit=10)) == [10, 10, 5]


def test_limit_below_number_of_classes_names_random_split() -> None:
    with pytest.raises(UserError, match="limit: must be at least the number of classes, 5, got 3") as caught:
        split(100, "stratified", classes=np.arange(100) % 5, limit=3)
    assert "--split random" in caught.value.hint
