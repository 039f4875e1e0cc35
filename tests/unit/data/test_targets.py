"""Targets: the guessed task and the encoded values, as tables of cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data.targets import encode_target
from kfp_mindspore.errors import UserError

TEXTS = np.array([b"dog", b"cat", b"dog"], object)


@pytest.mark.parametrize(
    ("array", "task", "reason"),
    [
        (TEXTS, "classification", "texts"),
        (np.array([True, False]), "classification", "booleans"),
        (np.array([0.5, 1.0]), "regression", "floating numbers"),
        (np.array([1.0, 2.0]), "regression", "floating numbers"),
        (np.arange(20), "classification", "20 different integers"),
        (np.arange(21), "regression", "21 different integers"),
        # 50 classes with 20 samples each.
        (np.arange(1000) % 50, "classification", "50 different integers"),
        (np.arange(999) % 50, "regression", "50 different integers"),
        (np.array([[0, 1], [1, 1]]), "multi_label", "several values of 0 or 1"),
        (np.array([[0, 1], [1, 2]]), "regression", "several numbers"),
        (np.array([[0.5, 1.0]]), "regression", "several numbers"),
    ],
)
def test_task_is_guessed_with_reason(array: np.ndarray, task: str, reason: str) -> None:
    target = encode_target(["y"], [array], (), "")
    assert target.task == task
    assert reason in target.reason
    assert not encode_target(["y"], [array], (), task).reason, "a given task has no reason"


@pytest.mark.parametrize(
    ("array", "labels", "encoded", "names"),
    [
        (TEXTS, (), [1, 0, 1], ("cat", "dog")),
        (np.array([7, 3, 7]), (), [1, 0, 1], ("3", "7")),
        (np.array([-1, 1, 0]), (), [0, 2, 1], ("-1", "0", "1")),
        (np.array([2.0, 1.0, 2.0]), (), [1, 0, 1], ("1", "2")),
        (np.array([True, False, True]), (), [1, 0, 1], ("False", "True")),
        (np.array([b"\xff", b"a", b"a"], object), (), [1, 0, 0], ("a", "�")),
        # Indexes of given names keep their values, also where a class has no sample.
        (np.array([2, 0, 2]), ("a", "b", "c"), [2, 0, 2], ("a", "b", "c")),
    ],
)
def test_classes_are_indexes(array: np.ndarray, labels: tuple[str, ...], encoded: list[int], names: Any) -> None:
    target = encode_target(["y"], [array], labels, "classification")
    assert target.array is not None
    assert (target.array.tolist(), target.array.dtype, target.labels) == (encoded, np.int32, names)


def test_class_names_select_classification() -> None:
    assert encode_target(["y"], [np.arange(100)], tuple(map(str, range(100))), "").task == "classification"


@pytest.mark.parametrize(
    ("names", "arrays", "labels", "expected"),
    [
        (["a", "b"], [np.array([0, 1]), np.array([1, 1])], (), ("a", "b")),
        (["y"], [np.array([[0, 1, 0], [1, 1, 0]])], (), ("0", "1", "2")),
        (["y"], [np.array([[0, 1], [1, 1]])], ("red", "blue"), ("red", "blue")),
    ],
)
def test_labels_of_multi_label_target(names: list[str], arrays: list[np.ndarray], labels: Any, expected: Any) -> None:
    target = encode_target(names, arrays, labels, "multi_label")
    assert target.array is not None
    assert (target.labels, target.array.dtype) == (expected, np.float32)
    assert target.array.shape == (2, len(expected))


def test_numbers_are_float32() -> None:
    target = encode_target(["y"], [np.array([1, 2])], (), "regression")
    assert target.array is not None
    assert (target.array.dtype, target.labels) == (np.float32, ())


def test_several_numbers_are_one_target() -> None:
    target = encode_target(["a", "b"], [np.array([1.0, 2.0]), np.array([3.0, 4.0])], (), "")
    assert target.array is not None
    assert (target.task, target.array.tolist()) == ("regression", [[1, 3], [2, 4]])


def test_ids_of_language_model_are_int32() -> None:
    target = encode_target(["y"], [np.array([[1, 2], [3, 4]])], (), "language_model")
    assert target.array is not None
    assert target.array.dtype == np.int32


@pytest.mark.parametrize(("task", "reason"), [("", "there is no target"), ("none", "")])
def test_dataset_without_target(task: str, reason: str) -> None:
    target = encode_target([], [], (), task)
    assert (target.task, target.reason, target.array, target.labels) == ("none", reason, None, ())


@pytest.mark.parametrize(
    ("arrays", "labels", "task", "message"),
    [
        ([TEXTS], (), "sorting", "task: must be one of .*, got 'sorting'"),
        ([], (), "regression", "task: regression needs a target"),
        ([TEXTS, np.arange(3)], (), "", "several fields must hold numbers"),
        ([np.zeros((3, 2))], (), "classification", r"one class a sample, got shape \(3, 2\)"),
        ([TEXTS], (), "regression", "regression needs numbers, got texts"),
        ([np.array([0.5])], (), "classification", "needs integers or texts, got 0.5 in row 1"),
        ([np.array([0, 3])], ("a", "b"), "", "indexes of the 2 class names, 0 to 1"),
        ([np.array([-1, 0])], ("a", "b"), "", "indexes of the 2 class names, 0 to 1"),
        ([TEXTS], ("cat", "dog"), "", "indexes of the 2 class names, 0 to 1"),
        ([np.array([[0, 2]])], (), "multi_label", "multi_label needs 0 or 1 for each label"),
        ([np.array([0, 1])], (), "multi_label", r"multi_label needs 0 or 1 for each label, got shape \(2,\)"),
        ([np.array([0.5])], (), "language_model", r"needs ids of shape \(N, L\), got float64"),
    ],
)
def test_values_that_do_not_fit_task_are_refused(arrays: Any, labels: Any, task: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode_target(["y", "z"][: len(arrays)], arrays, labels, task)
