"""Validation around a transform: which errors are the client's, which the model's, and that neither leaks details."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.transform import BYTES, Arrays, Concatenate, Pipeline, TensorSpec, Transform, TransformInputError
from kfp_mindspore.transform.base import Signature, TransformFailedError, fill_objects
from kfp_mindspore.transform.bound import bind_transform

TEXT = (TensorSpec("text", BYTES, (-1,)),)
SIGNATURE = Signature(
    (TensorSpec("ids", "int32", (-1, 4)), TensorSpec("mask", "float32", (-1, 4))),
    (TensorSpec("output", "float32", (-1, 2)),),
    "2.9.0",
)


class Words(Transform):
    """Texts of four letters to their codes."""

    inputs = TEXT
    outputs = (TensorSpec("word", BYTES, (-1,)),)

    def preprocess(self, inputs: Arrays) -> Arrays:
        texts = [text.decode() for text in inputs["text"]]
        if any("?" in text for text in texts):
            raise TransformInputError("text: must have no '?'")
        codes = np.array([[ord(letter) for letter in text] for text in texts], np.int32)
        return {"ids": codes, "mask": np.ones(codes.shape, np.float32)}

    def postprocess(self, outputs: Arrays) -> Arrays:
        return {"word": np.array(["né" if row[0] > row[1] else "no" for row in outputs["output"]])}


class Given(Transform):
    """Returns or raises `result`."""

    inputs = TEXT

    def __init__(self, result: Any) -> None:
        self.result = result

    def preprocess(self, inputs: Arrays) -> Arrays:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result  # type: ignore[no-any-return]

    def postprocess(self, outputs: Arrays) -> Arrays:
        return self.preprocess(outputs)


def send(*texts: Any) -> Arrays:
    return {"text": fill_objects(list(texts))}


def test_texts_as_inputs_and_outputs() -> None:
    bound = bind_transform(Words(), SIGNATURE, "words")
    assert (bound.preprocesses, bound.postprocesses) == (True, True)
    assert bound.inputs == TEXT
    found = bound.run_preprocess(send(b"abcd", "né! ".encode()))
    assert found["ids"].tolist() == [[97, 98, 99, 100], [110, 233, 33, 32]]
    answers = bound.run_postprocess({"output": np.array([[1, 0], [0, 1]], np.float32)})
    assert answers["word"].dtype == object
    assert answers["word"].tolist() == ["né".encode(), b"no"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'text': missing, got none"),
        ({"texts": np.ones(1)}, "input 'text': missing, got 'texts'; input 'texts': unknown, expected 'text'"),
        ({"text": np.ones(1, np.float32)}, "input 'text': dtype must be bytes, got float32"),
        (send("a text"), "input 'text': dtype must be bytes, got object"),
        ({"text": fill_objects([b"a"]).reshape(1, 1)}, r"input 'text': shape must be \(-1,\), got \(1, 1\)"),
        ({"text": fill_objects([])}, r"input 'text': shape must be \(-1,\), got \(0,\)"),
        (send(b"a?cd"), "text: must have no '?'"),
        (send(b"a longer text"), r"input: preprocessed, 'ids': shape must be \(-1, 4\), got \(1, 13\)"),
    ],
)
def test_invalid_requests_raise_transform_input_error(inputs: Arrays, message: str) -> None:
    with pytest.raises(TransformInputError, match=message):
        bind_transform(Words(), SIGNATURE, "words").run_preprocess(inputs)


JOINED = bind_transform(
    Pipeline(
        [Concatenate(["a", "b"], "x")],
        inputs=[TensorSpec("a", "float32", (-1, 2)), TensorSpec("b", "float32", (-1, 3))],
    ),
    Signature((TensorSpec("x", "float32", (-1, 5)),), (TensorSpec("y", "float32", (-1, 2)),), "2.9.0"),
    "joined",
)


@pytest.mark.parametrize("method", ["run_preprocess", "run_light_preprocess"])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((1, 3), (1, 2), r"input 'a': shape must be \(-1, 2\), got \(1, 3\); input 'b': shape must be \(-1, 3\), got"),
        ((1, 2), (1,), r"input 'b': shape must be \(-1, 3\), got \(1,\)"),
        ((1, 0), (1, 5), r"input 'a': shape must be \(-1, 2\), got \(1, 0\)"),
        ((2, 2), (1, 3), "inputs: must have the same number of rows, got 2 in 'a', 1 in 'b'"),
        ((1, 2, 1), (1, 3), r"input 'a': shape must be \(-1, 2\), got \(1, 2, 1\)"),
    ],
)
def test_light_and_other_methods_check_declared_shapes(method: str, a: Any, b: Any, message: str) -> None:
    with pytest.raises(TransformInputError, match=message):
        getattr(JOINED, method)({"a": np.ones(a, np.float32), "b": np.ones(b, np.float32)})


@pytest.mark.parametrize("method", ["preprocess", "postprocess"])
@pytest.mark.parametrize("prefix", ["run_", "run_light_"])
def test_failing_steps_are_named_by_method_and_error(prefix: str, method: str) -> None:
    bound = bind_transform(Given(ValueError("a secret")), SIGNATURE, "given")
    arrays = send(b"abcd") if method == "preprocess" else {"output": np.ones((1, 2), np.float32)}
    with pytest.raises(TransformFailedError, match=f"^given: {method} failed with ValueError$"):
        getattr(bound, prefix + method)(arrays)


IDS, MASK = np.ones((1, 4), np.int32), np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (KeyError("a secret"), "given: preprocess failed with KeyError"),
        (SystemExit(3), "given: preprocess failed with SystemExit"),
        (MemoryError(), "given: preprocess failed with MemoryError"),
        (RecursionError(), "given: preprocess failed with RecursionError"),
        (UserError("a secret"), "given: preprocess failed with UserError"),
        (None, "given: preprocess: must return arrays by name, got NoneType"),
        ([IDS], "given: preprocess: must return arrays by name, got list"),
        ({"ids": [[1, 2, 3, 4]]}, "given: preprocess: must return NumPy arrays by name, got 'ids': list"),
        ({1: IDS}, "must return NumPy arrays by name, got 1: ndarray"),
        ({"ids": IDS}, "does not fit the model: 'mask': missing, got 'ids'"),
        ({"ids": IDS, "mask": MASK, "x": MASK}, "'x': unknown, expected 'ids', 'mask'"),
        ({"ids": IDS.astype(np.int64), "mask": MASK}, "'ids': dtype must be int32, got int64"),
        ({"ids": IDS, "mask": MASK[0]}, r"'mask': shape must be \(-1, 4\), got \(4,\)"),
        ({"ids": IDS, "mask": MASK.repeat(2, axis=0)}, "'mask': must have 1 rows, as the request has, got 2"),
        ({"ids": IDS[:0], "mask": MASK[:0]}, r"'ids': shape must be \(-1, 4\), got \(0, 4\)"),
    ],
)
def test_failures_of_preprocess_raise_transform_failed_error(result: Any, message: str) -> None:
    with pytest.raises(TransformFailedError, match=message) as raised:
        bind_transform(Given(result), SIGNATURE, "given").run_preprocess(send(b"abcd"))
    assert "secret" not in str(raised.value)
    if isinstance(result, BaseException):
        assert raised.value.__cause__ is result


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (ValueError("x"), TransformFailedError, "given: postprocess failed with ValueError"),
        (TransformInputError("no text"), TransformInputError, "no text"),
        ({"output": np.ones((1, 3), np.float32)}, TransformFailedError, r"does not fit its outputs: 'output': shape"),
        ({"output": np.ones((2, 2), np.float32)}, TransformFailedError, "must have 1 rows"),
        ({"output": np.array([["a", "b"]])}, TransformFailedError, "dtype must be float32, got str"),
    ],
)
def test_failures_of_postprocess(result: Any, error: type[Exception], message: str) -> None:
    bound = bind_transform(Given(result), SIGNATURE, "given")
    with pytest.raises(error, match=message):
        bound.run_postprocess({"output": np.ones((1, 2), np.float32)})


def test_keyboard_interrupt_propagates() -> None:
    with pytest.raises(KeyboardInterrupt):
        bind_transform(Given(KeyboardInterrupt()), SIGNATURE, "given").run_preprocess(send(b"abcd"))


class Scale(Transform):
    def preprocess(self, inputs: Arrays) -> Arrays:
        inputs["x"] *= 2
        return inputs


def test_buffer_of_request_is_not_modified() -> None:
    content = np.ones((2, 3), np.float32).tobytes()
    signature = Signature((TensorSpec("x", "float32", (-1, 3)),), (TensorSpec("y", "float32", (-1, 3)),), "2.9.0")
    bound = bind_transform(Scale(), signature, "scale")
    found = bound.run_preprocess({"x": np.frombuffer(content, np.float32).reshape(2, 3)})
    assert found["x"].tolist() == [[2.0] * 3] * 2
    assert content == np.ones((2, 3), np.float32).tobytes()
    assert not bound.postprocesses


@pytest.mark.parametrize(("leading", "rows"), [(-1, 3), (4, 3), (4, 9)])
def test_fixed_batch_accepts_any_number_of_rows(leading: int, rows: int) -> None:
    signature = Signature(
        (TensorSpec("x", "float32", (leading, 3)),), (TensorSpec("y", "float32", (leading, 3)),), "2.9.0"
    )
    bound = bind_transform(Scale(), signature, "scale")
    assert bound.inputs == (TensorSpec("x", "float32", (-1, 3)),)
    assert bound.run_preprocess({"x": np.ones((rows, 3), np.float32)})["x"].shape == (rows, 3)


def test_model_without_batch() -> None:
    signature = Signature((TensorSpec("x", "float32", (2, 3)),), (TensorSpec("y", "float32", ()),), "2.9.0")
    bound = bind_transform(Scale(), signature, "scale")
    assert bound.run_preprocess({"x": np.ones((2, 3), np.float32)})["x"].sum() == 12
    with pytest.raises(TransformInputError, match=r"shape must be \(2, 3\), got \(1, 3\)"):
        bound.run_preprocess({"x": np.ones((1, 3), np.float32)})


def test_failing_describe_method_names_transform() -> None:
    class Broken(Transform):
        def describe_inputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
            raise KeyError("vocabulary")

    with pytest.raises(UserError, match="broken: describe_inputs failed: KeyError: 'vocabulary'"):
        bind_transform(Broken(), SIGNATURE, "broken")
