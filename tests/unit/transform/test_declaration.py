"""Pipelines as JSON: a declaration round trip computes the same, fitted steps learn from the training split only."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform import (
    Arrays,
    Cast,
    CenterCrop,
    Concatenate,
    DecodeImage,
    Label,
    MinMax,
    Normalize,
    OneHot,
    Pad,
    Pipeline,
    Rename,
    Resize,
    Softmax,
    Standardize,
    Step,
    Tokenize,
    TopK,
    TransformInputError,
    Vocabulary,
    build_pipeline,
)
from kfp_mindspore.transform.base import Signature, fill_objects
from kfp_mindspore.transform.bound import bind_transform
from kfp_mindspore.transform.boxes import LetterboxImage, SelectBoxes
from kfp_mindspore.transform.declaration import STEPS, declare, fit_steps

INPUTS = (
    TensorSpec("age", "float32", (-1,)),
    TensorSpec("city", "bytes", (-1,)),
    TensorSpec("user", "int64", (-1,)),
    TensorSpec("text", "bytes", (-1,)),
)
TEXTS = st.text(max_size=6).map(str.encode) | st.binary(max_size=4)


@st.composite
def make_rows(draw: st.DrawFn) -> Arrays:
    count = draw(st.integers(1, 8))

    def column(elements: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(elements, min_size=count, max_size=count))

    return {
        "age": np.array(column(st.floats(-1e6, 1e6, width=32)), np.float32),
        "city": fill_objects(column(TEXTS)),
        "user": np.array(column(st.integers(-(2**60), 2**60)), np.int64),
        "text": fill_objects(column(TEXTS)),
    }


def make_steps(unit: str, scale: type[Step]) -> list[Step]:
    return [
        scale("age"),
        OneHot(column="city"),
        Vocabulary(column="user"),
        Tokenize(4, unit, max_values=5, column="text"),
        Concatenate(["city", "age"], "features"),
        Cast("int64", column="user"),
        Rename("item", column="user"),
    ]


@settings(max_examples=80, deadline=None)
@given(
    train=make_rows(),
    test=make_rows(),
    unit=st.sampled_from(["characters", "words"]),
    scale=st.sampled_from([Standardize, MinMax]),
)
def test_built_declaration_computes_same(train: Arrays, test: Arrays, unit: str, scale: type[Step]) -> None:
    steps, last = fit_steps(make_steps(unit, scale), train)
    pipeline = Pipeline(steps, inputs=INPUTS)
    built = build_pipeline(json.loads(json.dumps(declare(pipeline))))
    assert (built.inputs, declare(built)) == (INPUTS, declare(pipeline))
    for rows in (train, test):
        expected, found = pipeline.preprocess(dict(rows)), built.preprocess(dict(rows))
        assert list(found) == ["features", "item", "text"]
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
    for name, array in pipeline.preprocess(dict(train)).items():
        np.testing.assert_array_equal(array, last[name])


@pytest.mark.parametrize(
    ("step", "declared"),
    [
        (Normalize(0, 16, column="image"), {"type": "Normalize", "mean": [0.0], "std": [16.0], "column": "image"}),
        (Resize((4, 5)), {"type": "Resize", "size": [4, 5]}),
        (CenterCrop((4, 5)), {"type": "CenterCrop", "size": [4, 5]}),
        (DecodeImage("L"), {"type": "DecodeImage", "mode": "L"}),
        (Label(["a", "b"]), {"type": "Label", "labels": ["a", "b"]}),
        (TopK(1, ["a"]), {"type": "TopK", "k": 1, "labels": ["a"]}),
        (Softmax(), {"type": "Softmax"}),
        (Standardize("age"), {"type": "Standardize", "column": "age"}),
        (MinMax(), {"type": "MinMax"}),
        (Normalize(0, 1, axis=-1), {"type": "Normalize", "mean": [0.0], "std": [1.0], "axis": -1}),
        (Pad(9, mask="m", column="ids"), {"type": "Pad", "length": 9, "mask": "m", "column": "ids"}),
        (OneHot([3, 1]), {"type": "OneHot", "values": [3, 1]}),
        (Vocabulary(["é"]), {"type": "Vocabulary", "values": ["é"]}),
        (Tokenize(9, "words"), {"type": "Tokenize", "length": 9, "unit": "words"}),
        (Tokenize(9, "words", lowercase=True), {"type": "Tokenize", "length": 9, "unit": "words", "lowercase": True}),
        (Tokenize(9, side="left"), {"type": "Tokenize", "length": 9, "side": "left"}),
        (Label(["a"], last=True), {"type": "Label", "labels": ["a"], "last": True}),
        (Cast("int32"), {"type": "Cast", "dtype": "int32"}),
        (Rename("x", column="y"), {"type": "Rename", "name": "x", "column": "y"}),
        (Concatenate(["a"], "b"), {"type": "Concatenate", "columns": ["a"], "name": "b"}),
        (LetterboxImage((4, 5), stretch=True), {"type": "LetterboxImage", "canvas": [4, 5], "stretch": True}),
        (SelectBoxes(["a"], threshold=0.9), {"type": "SelectBoxes", "labels": ["a"], "threshold": 0.9}),
    ],
)
def test_declared_steps(step: Step, declared: dict[str, Any]) -> None:
    part = "post" if isinstance(step, Label | TopK | Softmax | SelectBoxes) else "pre"
    assert declare(Pipeline(**{part: [step]}))[part] == [declared]
    assert declare(build_pipeline({part: [declared]}))[part] == [declared]


def test_every_step_is_in_table_above() -> None:
    (mark,) = [mark for mark in test_declared_steps.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert {declared["type"] for _, declared in mark.args[1]} == set(STEPS)


# ---- results

CITIES = fill_objects([b"Rome", b"Oslo", b"Rome"])


@pytest.mark.parametrize(
    ("step", "train", "rows", "expected"),
    [
        (Standardize(), np.array([[1, 7], [3, 7]]), np.array([[1, 7], [5, 9]]), [[-1, 0], [3, 2]]),
        (Standardize(), np.array([2.0, 4.0]), np.array([2.0, 6.0]), [-1, 3]),
        (MinMax(), np.array([[0, 5], [4, 5]]), np.array([[2, 5], [8, 6]]), [[0.5, 0], [2, 1]]),
        (OneHot(), CITIES, fill_objects([b"Oslo", b"Rome", b"Paris"]), [[1, 0], [0, 1], [0, 0]]),
        (OneHot(), np.array([5, 3]), np.array([3, 5, 4]), [[1, 0], [0, 1], [0, 0]]),
        (OneHot(), np.array([True, False]), np.array([True]), [[0, 1]]),
        (Vocabulary(), CITIES, fill_objects([b"Paris", b"Oslo", b"Rome"]), [0, 1, 2]),
        (Vocabulary([7, 5]), np.array([5]), np.array([[5, 7], [6, 9]]), [[2, 1], [0, 0]]),
        (Vocabulary([]), CITIES, CITIES, [0, 0, 0]),
        (Tokenize(3), fill_objects([b"ab"]), fill_objects([b"", b"ba", b"axbb"]), [[0, 0, 0], [3, 2, 0], [2, 1, 3]]),
        (
            Tokenize(3, side="left"),
            fill_objects([b"ab"]),
            fill_objects([b"", b"ba", b"axbb"]),
            [[0, 0, 0], [0, 3, 2], [1, 3, 3]],
        ),
        (Tokenize(2, "words"), fill_objects([b"To be"]), fill_objects([b"BE to me"]), [[2, 3]]),
        (Tokenize(2, max_values=1), fill_objects([b"abb"]), fill_objects([b"ab"]), [[1, 2]]),
    ],
)
def test_fitted_steps(step: Step, train: Any, rows: Any, expected: Any) -> None:
    (fitted,), _ = fit_steps([step], {"x": train})
    found = fitted.apply({"x": rows})["x"]
    assert found.dtype == (np.int32 if isinstance(step, Vocabulary | Tokenize) else found.dtype)
    np.testing.assert_allclose(found, np.array(expected))


def test_vocabulary_and_tokens_count_their_indexes() -> None:
    assert (Vocabulary(["a", "b"]).size, Tokenize(3, values=["a", "b"]).size) == (3, 4)


def test_label_is_beside_scores() -> None:
    scores = np.array([[0, 2, 1], [3, 3, 0]], np.float32)
    found = Label(["é", "b", "c"]).apply({"output": scores})
    assert list(found) == ["output", "label"]
    assert found["label"].tolist() == [b"b", "é".encode()]
    specs = Label(["a", "b", "c"]).infer_outputs([TensorSpec("output", "float32", (-1, 3))])
    assert specs[1] == TensorSpec("label", "bytes", (-1,))


def test_label_of_last_position_is_next_text() -> None:
    scores = np.array([[[9, 0], [0, 1]], [[0, 9], [1, 0]]], np.float32)
    step = Label(["a", "b"], name="next", last=True)
    assert step.apply({"output": scores})["next"].tolist() == [b"b", b"a"]
    assert step.infer_outputs([TensorSpec("output", "float32", (-1, 2, 2))])[1] == TensorSpec("next", "bytes", (-1,))


def test_declared_pipeline_fits_model_with_several_inputs() -> None:
    signature = Signature(
        (TensorSpec("features", "float32", (-1, 3)), TensorSpec("item", "int64", (-1,))),
        (TensorSpec("output", "float32", (-1, 2)),),
        "2.9.0",
    )
    arrays = {"age": np.ones(3, np.float32), "city": CITIES, "user": np.array([4, 5, 6])}
    steps, _ = fit_steps([step for step in make_steps("words", MinMax) if step.column != "text"], arrays)
    pipeline = Pipeline(steps, [Label(["no", "yes"])], inputs=INPUTS[:3])
    bound = bind_transform(build_pipeline(declare(pipeline)), signature, "preprocessing.json")
    found = bound.run_preprocess(arrays)
    assert {name: (array.dtype.name, array.shape) for name, array in found.items()} == {
        "features": ("float32", (3, 3)),
        "item": ("int64", (3,)),
    }
    assert [spec.name for spec in bound.outputs] == ["output", "label"]


# ---- errors


class Custom(Step):
    """A step of a user."""


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ([], "preprocessing: must be a JSON object, got"),
        ({"before": []}, "preprocessing: before: unknown, must be one of inputs, pre, post"),
        ({"inputs": [{"name": "x"}]}, "preprocessing: inputs: must be specs of name, dtype and shape"),
        ({"pre": {"type": "Resize"}}, "preprocessing: pre: must be a list of steps"),
        ({"pre": ["Resize"]}, r"pre\[0\]: must be an object such as .*, got 'Resize'"),
        ({"post": [{"type": "os.system"}]}, r"post\[0\]: type: must be one of Cast, .*, got 'os.system'"),
        ({"pre": [{"type": "Resize", "height": 3}]}, r"pre\[0\]: Resize: height: unknown, must be one of size, column"),
        ({"pre": [{"type": "Resize"}]}, r"pre\[0\]: Resize: size: missing"),
        ({"pre": [{"type": "Resize", "size": 3}]}, r"pre\[0\]: Resize: "),
        ({"pre": [{"type": "Normalize", "mean": [0], "std": [0]}]}, r"pre\[0\]: Normalize: .* std not 0"),
    ],
)
def test_invalid_declarations(declaration: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_pipeline(declaration)


def test_only_own_steps_are_declared() -> None:
    with pytest.raises(UserError, match=r"preprocessing: Custom: only Cast, .* can be declared\n.*--transform FILE"):
        declare(Pipeline([Custom()]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Standardize().compute(np.ones(2)), "Standardize: must be fitted on the training split first"),
        (lambda: OneHot().compute(CITIES), "OneHot: must be fitted"),
        (lambda: Standardize().fit({"x": CITIES}), "Standardize: 'x': must hold numbers, its dtype is bytes"),
        (lambda: MinMax().fit({"x": np.array([1, np.nan])}), "MinMax: 'x': must hold finite numbers, 1 are NaN"),
        (lambda: Tokenize(3).fit({"x": np.ones(2)}), "Tokenize: 'x': must hold texts, got float64"),
        (lambda: Tokenize(0), "Tokenize: length: must be a number of at least 1, got 0"),
        (lambda: Tokenize(3, "bytes"), "Tokenize: unit: must be characters or words or subwords, got 'bytes'"),
        (lambda: Tokenize(3, side="end"), "Tokenize: side: must be right or left, got 'end'"),
        (
            lambda: Label(["a"], last=True).infer_outputs([TensorSpec("y", "float32", (-1, 1))]),
            r"Label: last: 'y' must have shape \(-1, positions, classes\), has \(-1, 1\)",
        ),
        (lambda: OneHot(["a", 1]), "OneHot: values: must be a list of texts or of numbers"),
        (lambda: Vocabulary([1, 1.0]), "Vocabulary: values: must be different, 1 is repeated"),
        (lambda: Concatenate(["a", "a"], "b"), "Concatenate: columns: must be different"),
        (lambda: Concatenate(["a", "b"], "x").apply({"a": np.ones(2)}), "Concatenate: columns: no 'b', found 'a'"),
        (lambda: Cast("text"), "Cast: dtype: must be NumPy's name of a number, such as float32, got 'text'"),
        (lambda: Label([]), "Label: labels: must be a list of texts"),
        (
            lambda: Label(["a"]).infer_outputs([TensorSpec("y", "float32", (-1, 2))]),
            "Label: labels: must be 2, one a class of 'y', got 1",
        ),
        (
            lambda: Pipeline([Cast("float32")]).describe_inputs(Signature(INPUTS[:1], INPUTS[:1], "")),
            r"Cast: the inputs before it must be named: Pipeline\(…, inputs=",
        ),
    ],
)
def test_invalid_steps(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("step", "rows", "message"),
    [
        (OneHot(["a"]), np.ones(2), "input: must hold texts, got numbers"),
        (Vocabulary([1]), CITIES, "input: must hold numbers, got texts"),
        (Tokenize(2, values=["a"]), np.ones(2), "input: must hold texts, got float64"),
        (Cast("float32"), CITIES, "input: must hold numbers, got texts or files"),
        (Concatenate(["x"], "y"), np.ones((2, 3, 4)), r"input 'x': must be numbers of shape \(N,\) or \(N, F\)"),
    ],
)
def test_invalid_requests(step: Step, rows: Any, message: str) -> None:
    with pytest.raises(TransformInputError, match=message):
        step.apply({"x": rows})
