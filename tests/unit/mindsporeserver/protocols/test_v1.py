"""V1 bodies: rows as lists and as objects, one input or several, and back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kfp_mindspore.formats.bundle import TensorSpec
from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols import v1
from mindsporeserver.protocols.tensors import InputReader

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]


def make_readers(**specs: tuple[str, tuple[int, ...]]) -> dict[str, InputReader]:
    return {name: InputReader(TensorSpec(name, *spec), finite=True) for name, spec in specs.items()}


ONE = make_readers(x=("float32", (-1, 2)))
TWO = make_readers(x=("float32", (-1, 2)), n=("int32", (-1,)))
FILES = make_readers(file=("bytes", (-1,)))
MIXED = make_readers(text=("bytes", (-1,)), n=("int32", (-1,)))


def decode(value: Any, readers: dict[str, InputReader]) -> dict[str, np.ndarray[Any, Any]]:
    return v1.decode(v1.parse_json(json.dumps(value).encode()), readers)


@pytest.mark.parametrize(
    "row",
    ['{"x": [1, 2], "n": 1, "x": [3, 4]}', '{"n": 1, "x": [1, 2], "\\u006e": 2}', '{"n": 1, "x": [{"a": 1, "a": 2}]}'],
)
def test_duplicate_keys_of_rows_are_refused(row: str) -> None:
    body = f'{{"instances": [{{"x": [1, 2], "n": 3}}, {row}]}}'.encode()
    with pytest.raises(InvalidRequestError, match="given twice in one object"):
        v1.decode(v1.parse_json(body), TWO, None, body)


def test_texts_with_colons_are_no_keys() -> None:
    body = b'{"instances": [{"text": "a: \\"b\\": c", "n": 3}]}'
    assert v1.decode(v1.parse_json(body), MIXED, None, body)["text"].tolist() == [b'a: "b": c']


def test_body_of_numbers_is_not_searched_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1, "_refuse_duplicates", pytest.fail)
    body = b'{"instances": [[1, 2], [3, 4]]}'
    assert v1.decode(v1.parse_json(body), ONE, None, body)["x"].shape == (2, 2)


@pytest.mark.parametrize("field", ["instances", "inputs"])
def test_rows_of_one_input_are_lists_or_objects(field: str) -> None:
    rows = [[1, 2.5], [3, 4]]
    for value in (rows, [{"x": row} for row in rows]):
        found = decode({field: value}, ONE)
        assert list(found) == ["x"]
        assert (found["x"].dtype, found["x"].tolist()) == (np.float32, [[1, 2.5], [3, 4]])


def test_other_fields_are_left_alone() -> None:
    found = decode({"signature_name": "serving_default", "instances": [[1, 2]], "parameters": {}}, ONE)
    assert found["x"].tolist() == [[1, 2]]
    assert decode({"instances": [[1, 2]], "inputs": [[3, 4]]}, ONE)["x"].tolist() == [[1, 2]]


def test_rows_of_several_inputs_are_objects() -> None:
    found = decode({"instances": [{"n": 7, "x": [1, 2]}, {"x": [3, 4], "n": 8}]}, TWO)
    assert (found["x"].tolist(), found["n"].tolist(), found["n"].dtype) == ([[1, 2], [3, 4]], [7, 8], np.int32)


def test_files_are_texts_or_base_64() -> None:
    for rows in (["a", {"b64": "/wA="}], [{"file": "a"}, {"file": {"b64": "/wA="}}]):
        assert decode({"instances": rows}, FILES)["file"].tolist() == [b"a", b"\xff\x00"]
    assert decode({"instances": [{"b64": "/wA="}, "a"]}, FILES)["file"].tolist() == [b"\xff\x00", b"a"]
    found = decode({"instances": [{"text": {"b64": "/wA="}, "n": 3}]}, MIXED)
    assert (found["text"].tolist(), found["n"].tolist()) == ([b"\xff\x00"], [3])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body: not valid JSON"),
        (b"{", "body: not valid JSON"),
        (b'{"instances": [[NaN, 1]]}', "body: not valid JSON"),
        (b'{"instances": [[Infinity, 1]]}', "body: not valid JSON"),
        (b"\xff\xfe{}", "body: not valid JSON: must be UTF-8 text, got byte 0xff at 0"),
        (b'{"instances": ["\xe9"]}', "body: not valid JSON: must be UTF-8 text, got byte 0xe9 at 16"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "body: not valid JSON: got a PNG image; send an object such as"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "body: not valid JSON: got a JPEG image"),
        (b"PK\x03\x04\x14", "body: not valid JSON: got an NPZ or ZIP file"),
        (b'{"instances": [[1, 2]]} {}', "body: not valid JSON"),
        (b"[" * 5000 + b"]" * 5000, "body: not valid JSON"),
        (b"null", "body: must be a JSON object with 'instances', got null"),
        (b"3", "body: must be a JSON object with 'instances', got a number"),
        (b'"instances"', "body: must be a JSON object with 'instances', got a string"),
        (b"[[1, 2]]", "body: must be a JSON object with 'instances', got a list"),
        (b"true", "got a boolean"),
        (b"{}", "instances: missing, got fields none"),
        (b'{"Instances": [[1, 2]]}', "instances: missing, got fields 'Instances'"),
        (b'{"instances": null}', "instances: must be a list, got null"),
        (b'{"instances": {"x": [1, 2]}}', "instances: must be a list, got an object"),
        (b'{"instances": "abc"}', "instances: must be a list, got a string"),
        (b'{"instances": [{"x": [1, 2]}, [3, 4]]}', "instances[1]: must be an object with 'x', got a list"),
        (b'{"instances": [{"x": [1, 2]}, null]}', "instances[1]: must be an object with 'x', got null"),
        (b'{"instances": [{"y": [1, 2]}]}', "instances[0]: input 'x' missing, got 'y'"),
        (b'{"instances": [{}]}', "instances[0]: input 'x' missing, got none"),
        (b'{"instances": [{"x": [1, 2], "y": 3}]}', "instances[0]: input 'y' unknown, expected 'x'"),
        (b'{"instances": [{"x": [1, 2]}, {"x": [3]}]}', "input 'x': shape must be (-1, 2), got rows of different"),
        (b'{"instances": [[1, 2], {"x": [1, 2]}]}', "input 'x': shape must be (-1, 2), got rows of different lengths"),
        (b'{"instances": [1, {"x": [1, 2]}]}', "input 'x': must contain numbers (float32), got objects"),
        (b'{"instances": [{"x": {"b64": "YQ=="}}]}', "input 'x': must contain numbers (float32), got objects"),
    ],
)
def test_bodies_that_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        v1.decode(v1.parse_json(body), ONE)
    assert message in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "instances: must be objects with 'x', 'n', got an empty list"),
        ([[1, 2]], "instances: must be objects with 'x', 'n', got a list"),
        ([{"b64": "YQ=="}], "instances[0]: input 'x' missing, got 'b64'"),
        ([{"x": [1, 2]}], "instances[0]: input 'n' missing, got 'x'"),
        ([{"x": [1, 2], "n": 1}, {"n": 1, "x": [1, 2], "m": 0}], "instances[1]: input 'm' unknown"),
        ([{"x": [1, 2], "n": 1.5}], "input 'n': must contain integers (int32), got floats"),
    ],
)
def test_rows_of_several_inputs_that_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode({"instances": rows}, TWO)
    assert message in caught.value.message


def test_no_rows_are_array_whose_shape_signature_refuses() -> None:
    assert decode({"instances": []}, ONE)["x"].shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_response_parses_as_request(dtype: str, data: Any) -> None:
    options: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if dtype.startswith("float") else {}
    elements = hnp.from_dtype(np.dtype(dtype), **options)
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), elements=elements))
    readers = make_readers(x=(dtype, (-1,) * array.ndim))
    rows = orjson.loads(v1.encode({"y": array}))["predictions"]
    assert decode({"instances": rows}, readers)["x"].tobytes() == array.tobytes()
    named = orjson.loads(v1.encode({"x": array, "z": array[..., ::-1]}))["predictions"]
    both = make_readers(x=(dtype, (-1,) * array.ndim), z=(dtype, (-1,) * array.ndim))
    found = decode({"instances": named}, both)
    assert found["x"].tobytes() == array.tobytes()
    assert found["z"].tolist() == array[..., ::-1].tolist()


def read(outputs: dict[str, Any]) -> Any:
    return orjson.loads(v1.encode(outputs))


def test_one_output_is_list_row_and_several_are_object_row() -> None:
    scores, best = np.array([[0.5, 1], [2, 3]], np.float32), np.array([b"a", "\xfc"], object)
    assert read({"scores": scores}) == {"predictions": [[0.5, 1], [2, 3]]}
    assert read({"scores": scores, "best": best}) == {
        "predictions": [{"scores": [0.5, 1], "best": "a"}, {"scores": [2, 3], "best": "ü"}]
    }


def test_outputs_without_common_rows_are_unchanged() -> None:
    assert read({"a": np.zeros((2, 1), np.float32), "b": np.array(3, np.float32)}) == {
        "predictions": {"a": [[0], [0]], "b": 3}
    }
    assert read({"a": np.zeros(2, np.int32), "b": np.zeros(3, np.int32)}) == {
        "predictions": {"a": [0, 0], "b": [0, 0, 0]}
    }


def test_floats_are_shortest_text_of_same_number_and_nan_is_null() -> None:
    assert v1.encode({"y": np.array([0.1, 1e-7], np.float32)}) == b'{"predictions":[0.1,1e-7]}'
    assert v1.encode({"y": np.array([math.nan, math.inf], np.float32)}) == b'{"predictions":[null,null]}'


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.float32).reshape(2, 3).T, np.arange(6, dtype=">f4")[::2]])
def test_arrays_that_lie_otherwise_in_memory(array: np.ndarray[Any, Any]) -> None:
    assert read({"y": array}) == {"predictions": array.tolist()}


def test_texts_that_are_no_utf_8_are_base_64() -> None:
    assert read({"y": np.array([[b"\xff\x00"], [b"a"]], object)}) == {"predictions": [[{"b64": "/wA="}], ["a"]]}
    assert read({"y": np.array([b"\xff"], object), "n": np.array([1])}) == {
        "predictions": [{"y": {"b64": "/w=="}, "n": 1}]
    }
