from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.mindir.monitoring.measures import (
    measure_column,
    measure_predictions,
    resolve_kind,
    split_columns,
)
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.transform.categories import Tokenize

WORDS = Tokenize(4, "words", ["good", "film"], column="text")


def make_png(brightness: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 2), (brightness,) * 3).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("array", "tokenizer", "kind"),
    [
        (np.arange(100, dtype=np.float32), None, "number"),
        (np.arange(100) % 3, None, "category"),
        (np.zeros((10, 3, 8, 8)), None, "image"),
        (np.zeros((10, 300)), None, "list"),
        (fill_objects([np.arange(2), np.arange(3)]), None, "list"),
        (fill_objects([b"a", b"b"] * 50), None, "category"),
        (fill_objects([b"a", b"b"] * 50), WORDS, "text"),
        (fill_objects([str(index).encode() for index in range(500)]), None, "text"),
        (fill_objects([make_png(9)]), None, "image"),
    ],
)
def test_kinds(array: Any, tokenizer: Any, kind: str) -> None:
    assert resolve_kind(array, tokenizer) == kind


@pytest.mark.parametrize(
    ("kind", "values", "measures"),
    [
        ("number", [1, None, 2.5, "3", True], {"value": [1, np.nan, 2.5, np.nan, 1]}),
        ("category", ["a", b"b", "", None, 1, 1.0, True, {}], {"value": ["a", "b", None, None, "1", "1", "1", None]}),
        ("text", ["good", "bad film", None, 3],
         {"length": [4, 8, np.nan, np.nan], "unknown words": [0, 0.5, np.nan, np.nan]}),
        ("list", [[1, 3], [], None, 7], {"length": [2, 0, np.nan, np.nan], "mean": [2, 0, np.nan, np.nan]}),
        ("image", [[[0, 1], [0, 1]], make_png(51), b"no image", None, "x"],
         {"brightness": [0.5, 0.2, np.nan, np.nan, np.nan], "size": [4, 8, np.nan, np.nan, np.nan]}),
    ],
)  # fmt: skip
def test_measures(kind: str, values: list[Any], measures: dict[str, list[Any]]) -> None:
    found = measure_column(kind, values, WORDS)
    assert set(found) == set(measures)
    for name, expected in measures.items():
        if kind == "category":
            assert found[name] == expected
        else:
            np.testing.assert_allclose(found[name], expected)


def test_training_arrays_are_measured_as_requests_are() -> None:
    for kind, array in (("number", np.linspace(0, 1, 9, dtype=np.float32)), ("category", np.arange(9) / 10)):
        stored, sent = measure_column(kind, array), measure_column(kind, array.tolist())
        assert list(stored["value"]) == list(sent["value"])


def test_stacked_inputs_are_split() -> None:
    columns = split_columns({"x": [[1, 2], [3], None], "y": [5]}, {"x": ["a", "b"], "z": ["c"]})
    assert columns == {"a": [1, 3, None], "b": [2, None, None], "y": [5]}


@pytest.mark.parametrize(
    ("outputs", "task", "expected"),
    [
        ({"y": [[0.9, 0.1], [0.2, 0.8]]}, "classification", {"prediction": ["cat", "dog"], "confidence": [0.9, 0.8]}),
        ({"y": [[2.0, 0.0]], "label": ["cat"]}, "classification",
         {"prediction": ["cat"], "confidence": [1 / (1 + np.exp(-2))], "label": ["cat"]}),
        ({"label": ["3", "4"]}, "classification", {"label": ["3", "4"]}),
        ({"y": [[1.5], [2.5]]}, "regression", {"y": [1.5, 2.5]}),
        ({"y": [[1.0, 2.0]]}, "regression", {"y[0]": [1], "y[1]": [2]}),
        ({"y": [[1.0, 2.0], [1.0]]}, "regression", {}),
        ({}, "regression", {}),
    ],
)  # fmt: skip
def test_predictions(outputs: dict[str, Any], task: str, expected: dict[str, Any]) -> None:
    found = measure_predictions(outputs, task, ("cat", "dog"))
    assert set(found) == set(expected)
    for name, values in expected.items():
        if isinstance(values[0], str):
            assert list(found[name]) == values
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-6)
