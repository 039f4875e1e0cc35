"""Pad: lists with unequal lengths to arrays, with lengths and mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform import Pad, Pipeline, Standardize, build_pipeline
from kfp_mindspore.transform.base import TransformInputError, fill_objects
from kfp_mindspore.transform.bound import bind_transform
from kfp_mindspore.transform.declaration import declare, fit_steps

OUTPUT = TensorSpec("output", "float32", (-1, 2))


def make_lists(*rows: Any, dtype: str = "int32") -> np.ndarray:
    return fill_objects([np.array(row, dtype) for row in rows])


@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({}, [[1, 2], [3]], [[1, 2, 0], [3, 0, 0]]),
        ({"side": "left"}, [[1, 2], [3]], [[0, 1, 2], [0, 0, 3]]),
        ({"value": -1}, [[1, 2], []], [[1, 2, -1], [-1, -1, -1]]),
        ({"truncate": True}, [[1, 2, 3, 4], [5]], [[1, 2, 3], [5, 0, 0]]),
        ({"truncate": True, "side": "left"}, [[1, 2, 3, 4], [5]], [[2, 3, 4], [0, 0, 5]]),
    ],
)
def test_lists_are_padded_and_cut_on_one_side(options: Any, rows: Any, expected: Any) -> None:
    padded = Pad(3, **options).apply({"tokens": make_lists(*rows)})["tokens"]
    assert padded.dtype == np.int32
    assert padded.tolist() == expected


@pytest.mark.parametrize(("side", "mask"), [("right", [1, 1, 0]), ("left", [0, 1, 1])])
def test_lengths_and_mask_follow_the_column(side: str, mask: list[int]) -> None:
    step = Pad(3, side=side, lengths="count", mask="mask", column="tokens")
    arrays = step.apply({"age": np.zeros((2, 1)), "tokens": make_lists([4, 5], []), "last": np.zeros((2, 1))})
    assert list(arrays) == ["age", "tokens", "count", "mask", "last"]
    assert arrays["count"].tolist() == [2, 0]
    assert arrays["count"].dtype == np.int32
    assert arrays["mask"].tolist() == [mask, [0, 0, 0]]
    assert arrays["mask"].dtype == np.float32


def test_equal_lists_are_padded_as_unequal_ones() -> None:
    matrix = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert Pad(3).apply({"steps": matrix})["steps"].shape == (2, 3, 2)
    assert Pad(3).apply({"steps": make_lists([[1, 2]], [[3, 4], [5, 6]])})["steps"].shape == (2, 3, 2)


def test_longer_list_is_refused_with_its_row() -> None:
    with pytest.raises(TransformInputError, match="input 'tokens': row 1: has 4 values, expected at most 3"):
        Pad(3).apply({"tokens": make_lists([1], [1, 2, 3, 4])})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length: must be a number of at least 1, got 0"),
        ({"length": 3, "value": "0"}, "value: must be a finite number, got '0'"),
        ({"length": 3, "side": "top"}, "side: must be right or left, got 'top'"),
        ({"length": 3, "truncate": 1}, "truncate: must be true or false, got 1"),
        ({"length": 3, "mask": 1}, "mask: must be the name of an input, got 1"),
        ({"length": 3, "mask": "m", "lengths": "m"}, "must be different, got 'm', 'm'"),
    ],
)
def test_invalid_option_is_named(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Pad(**options)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"tokens": np.zeros(3)}, "'tokens': must hold lists of numbers, got float64 of"),
        ({"tokens": fill_objects([b"a", b"b"])}, "'tokens': must hold lists of numbers, got texts"),
        ({"tokens": make_lists([1], [2])}, "value: must be an integer, as the lists in 'tokens' are, got 0.5"),
    ],
)
def test_unfit_column_is_named(arrays: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Pad(3, 0.5).fit(arrays)


def test_requests_have_lists_without_lengths_and_mask() -> None:
    pipeline = build_pipeline(declare(Pipeline([Pad(4, lengths="count", mask="mask", column="tokens")])))
    inputs = (
        TensorSpec("tokens", "int32", (-1, 4)),
        TensorSpec("count", "int32", (-1,)),
        TensorSpec("mask", "float32", (-1, 4)),
    )
    signature = Signature(inputs, (OUTPUT,), "")
    bound = bind_transform(pipeline, signature, "test")
    assert [(spec.name, spec.shape) for spec in bound.inputs] == [("tokens", (-1, -1))]
    result = bound.run_preprocess({"tokens": make_lists([1, 2, 3], [])})
    assert {name: array.shape for name, array in result.items()} == {"tokens": (2, 4), "count": (2,), "mask": (2, 4)}
    assert bound.run_preprocess({"tokens": np.array([[1, 2]], np.int32)})["count"].tolist() == [2]
    example = pipeline.make_example(signature)
    assert example is not None
    assert example["tokens"].shape == (2, 4)


def test_graph_without_mask_is_refused() -> None:
    signature = Signature((TensorSpec("tokens", "int32", (-1, 4)),), (OUTPUT,), "")
    with pytest.raises(UserError, match="Pad: gives 'mask', but the inputs are 'tokens'"):
        bind_transform(Pipeline([Pad(4, mask="mask", column="tokens")]), signature, "test")


@pytest.mark.parametrize("rows", [[[1.0, 3.0], [5.0]], [[[1.0, 0.0]], [[3.0, 2.0], [5.0, 4.0]]]])
def test_lists_are_standardized_by_feature_before_padding(rows: Any) -> None:
    arrays = {"steps": make_lists(*rows, dtype="float32")}
    steps, result = fit_steps([Standardize(), Pad(3, lengths="count", column="steps")], arrays)
    values = np.concatenate([row[:count] for row, count in zip(result["steps"], result["count"], strict=True)])
    assert np.allclose(values.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(values.std(axis=0), 1)
    assert [type(step).__name__ for step in steps] == ["Normalize", "Pad"]
