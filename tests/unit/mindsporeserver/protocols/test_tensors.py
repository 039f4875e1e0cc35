"""Tensors of requests: exact values, and refusals with their messages."""

from __future__ import annotations

import base64
import math
import struct
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kfp_mindspore.formats.bundle import TensorSpec
from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols.tensors import (
    InputReader,
    check_names,
    describe,
    encode_texts,
    join,
    list_texts,
    name_array,
    name_datatype,
    name_type,
    shorten,
)
from mindsporeserver.protocols.v2 import to_bytes

DATATYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
INTEGERS = [name for name in DATATYPES if "int" in name]
FLOATS = ["float16", "float32", "float64"]


def make_reader(dtype: str = "float32", shape: tuple[int, ...] = (-1, 2), **options: Any) -> InputReader:
    return InputReader(TensorSpec("x", dtype, shape), **{"finite": True, **options})


def refuse(call: Any, *arguments: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        call(*arguments)
    assert caught.value.status == 400
    assert len(caught.value.message) < 500
    return caught.value.message


def arrays(dtype: str, least: int = 1) -> st.SearchStrategy[Any]:
    """Return arrays of shape (N, M), values of the whole range; no NaN and no infinities."""
    options: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if dtype.startswith("float") else {}
    elements = hnp.from_dtype(np.dtype(dtype), **options)
    return hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=2, min_side=least, max_side=5), elements=elements)


def test_names_of_datatypes() -> None:
    for dtype, datatype in DATATYPES.items():
        assert name_datatype(dtype) == datatype
        assert name_array(np.zeros(1, dtype)) == datatype
        assert make_reader(dtype).datatype == datatype
    assert name_array(np.array(["a"], object)) == name_array(np.array([b"a"])) == name_array(np.array(["a"])) == "BYTES"
    assert "complex64 has no name in the V2 protocol" in refuse(name_datatype, "complex64")
    assert "complex64 has no name" in refuse(name_array, np.zeros(1, np.complex64))
    specs = [TensorSpec("a", "float32", (-1, 3)), TensorSpec("b", "bytes", (-1,)), TensorSpec("c", "bfloat16", ())]
    assert describe(specs) == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "b", "datatype": "BYTES", "shape": [-1]},
        {"name": "c", "datatype": "BFLOAT16", "shape": []},
    ]


@pytest.mark.parametrize("dtype", DATATYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip_is_exact(dtype: str, data: Any) -> None:
    array = data.draw(arrays(dtype))
    reader = make_reader(dtype, (-1, -1))
    shape = list(array.shape)
    for found in (
        reader.read_nested(array.tolist()),
        reader.read_flat(array.tolist(), shape),
        reader.read_flat(array.ravel().tolist(), shape),
        reader.read_raw(to_bytes(array), shape),
        reader.read_raw(memoryview(b"xyz" + to_bytes(array))[3:], shape),
    ):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("order", [">", "<"])
def test_raw_bytes_are_little_endian_for_any_byte_order(order: str) -> None:
    array = np.arange(6, dtype=f"{order}i4").reshape(2, 3)
    assert to_bytes(array) == struct.pack("<6i", *range(6))
    assert to_bytes(array.T) == struct.pack("<6i", 0, 3, 1, 4, 2, 5)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        object,
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements=st.binary(max_size=20) | st.text(max_size=8),
    )
)
def test_round_trip_of_texts(array: Any) -> None:
    whole = np.empty(array.size, object)
    whole[:] = [element if isinstance(element, bytes) else element.encode() for element in array.ravel().tolist()]
    whole = whole.reshape(array.shape)
    reader = make_reader("bytes", (-1,) * array.ndim)
    found = reader.read_raw(encode_texts(array), list(array.shape))
    assert (found.shape, found.tolist()) == (whole.shape, whole.tolist())
    assert reader.read_nested(list_texts(array)).tolist() == whole.tolist()
    flat = [{"b64": base64.b64encode(element).decode()} for element in whole.ravel().tolist()]
    assert reader.read_flat(flat, list(array.shape)).tolist() == whole.tolist()


def test_invalid_utf8_in_list_is_shown_in_base_64() -> None:
    array = np.array([[b"caf\xc3\xa9", b"\xff\x00"], ["ü", "a"]], object)
    assert list_texts(array) == [["café", {"b64": "/wA="}], ["ü", "a"]]


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("float32", [["1", "2"]], "must contain numbers (float32), got strings"),
        ("float32", [[None, 2]], "must contain numbers (float32), got nulls"),
        ("float32", [[True, 1]], "must contain numbers (float32), got booleans"),
        ("float32", [[{}, 1]], "must contain numbers (float32), got objects"),
        ("float32", [["a", None, 1]], "must contain numbers (float32), got nulls and strings"),
        ("float32", [[1, 2], [3]], "shape must be (-1, 2), got rows of different lengths"),
        ("float32", [[1, 2], 3], "shape must be (-1, 2), got rows of different lengths"),
        ("float32", [[[1], [2]], [[3], 4]], "shape must be (-1, 2), got rows of different lengths"),
        ("float32", [[1, 2], []], "shape must be (-1, 2), got rows of different lengths"),
        ("float32", [[1, 2], "ab"], "got rows of different lengths"),
        ("int32", [[1.0, 2]], "must contain integers (int32), got floats"),
        ("int32", [[True, 2]], "must contain integers (int32), got booleans"),
        ("uint8", [["a", 2.5]], "must contain integers (uint8), got floats and strings"),
        ("bool", [[0, 1]], "must contain booleans (bool), got numbers"),
        ("bool", [["true", False]], "must contain booleans (bool), got strings"),
        ("complex64", [[1, 2]], "must contain no JSON value (complex64), got numbers"),
        ("bytes", [["a", 1]], 'must contain strings or {"b64": …} (BYTES), got a number'),
        ("bytes", [["a", None]], "got null"),
        ("bytes", [["a", {"b64": 1}]], "got an object"),
        ("bytes", [["a", {"b64": "YQ==", "x": 1}]], "got an object"),
        ("bytes", [["a", {"b64": "Y"}]], "b64 is not valid base64"),
        ("bytes", [["a", {"b64": "é"}]], "b64 is not valid base64"),
        ("bytes", [["a", "b"], ["c"]], "got rows of different lengths"),
        ("bytes", [["a", "b"], "c"], "got rows of different lengths"),
        # As many texts as three rows of two.
        ("bytes", [["a", "b"], ["c"], ["d", "e", "f"]], "shape must be (-1, 2), got rows of different lengths"),
        ("bytes", [["a"], "b"], "got rows of different lengths"),
        ("bytes", [["a"], []], "got rows of different lengths"),
    ],
)
def test_values_that_are_refused(dtype: str, values: Any, message: str) -> None:
    assert message in refuse(make_reader(dtype).read_nested, values)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_lose_no_digit_and_stay_in_their_range(dtype: str) -> None:
    limits = np.iinfo(dtype)
    reader = make_reader(dtype, (-1,))
    assert reader.read_nested([limits.min, limits.max]).tolist() == [limits.min, limits.max]
    for value in (limits.min - 1, limits.max + 1):
        message = refuse(reader.read_nested, [0, value])
        assert f"values must be {limits.min} to {limits.max} ({dtype}), got" in message
        assert str(value) in message


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 10_000])
def test_handling_of_nan_and_infinities(dtype: str, value: float, size: int) -> None:
    array = np.ones(size, dtype)
    array[size // 2] = value
    for reader, allowed in ((make_reader(dtype, (-1,)), False), (make_reader(dtype, (-1,), finite=False), True)):
        for read, arguments in (
            (reader.read_nested, (array.tolist(),)),
            (reader.read_flat, (array.tolist(), [size])),
            (reader.read_raw, (array.tobytes(), [size])),
        ):
            if allowed:
                np.testing.assert_array_equal(read(*arguments), array)
            else:
                assert f"must contain finite numbers, got NaN, infinity or a number too large for {dtype}" in refuse(
                    read, *arguments
                )


@pytest.mark.parametrize(("dtype", "most"), [("float16", 65504.0), ("float32", 3.4028234663852886e38)])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_numbers_that_are_too_large_for_type(dtype: str, most: float) -> None:
    reader = make_reader(dtype, (-1,))
    assert reader.read_nested([most, -most]).tolist() == [most, -most]
    assert f"a number too large for {dtype}" in refuse(reader.read_nested, [most * 2])
    assert f"a number too large for {dtype}" in refuse(reader.read_nested, [1 << 200])


def test_numbers_whose_squares_overflow_are_finite() -> None:
    for size in (3, 10_000):
        array = np.full(size, 3e38, np.float32)
        assert make_reader("float32", (-1,)).read_raw(array.tobytes(), [size]).tolist() == array.tolist()


SHAPES: list[tuple[tuple[int, ...], Any, str]] = [
    ((-1, 2), [2, 2, 1], "shape must be (-1, 2), got (2, 2, 1)"),
    ((-1, 2), [4], "shape must be (-1, 2), got (4,)"),
    ((-1, 2), [], "shape must be (-1, 2), got ()"),
    ((-1, 2), [1, 4], "shape must be (-1, 2), got (1, 4)"),
    ((-1, 2), [-1, 2], "shape must be (-1, 2), got (-1, 2)"),
    ((-1, 2), [0, 2], "shape must be (-1, 2), got (0, 2)"),
    ((-1, 2), [-2, -2], "shape must be (-1, 2), got (-2, -2)"),
    ((-1, 2), [2.0, 2], "shape must be a list of integers, got [2.0, 2]"),
    ((-1, 2), [True, 2], "shape must be a list of integers, got [True, 2]"),
    ((-1, 2), ["2", 2], "shape must be a list of integers"),
    ((-1, 2), [None, 2], "shape must be a list of integers"),
    ((-1, 2), "22", "shape must be a list of integers, got '22'"),
    ((-1, 2), 4, "shape must be a list of integers, got 4"),
    ((-1, 2), None, "shape must be a list of integers, got None"),
    ((-1, 2), {"0": 2}, "shape must be a list of integers"),
    ((-1, 2), [2] * 40, "shape must be a list of integers"),
    ((-1, 2), [1 << 62, 2], "must contain 9223372036854775808 values, got 4"),
    ((-1, 2), [3, 2], "data of shape [3, 2] must contain 6 values, got 4"),
    ((-1, 2), [1, 2], "data of shape [1, 2] must contain 2 values, got 4"),
    ((-1, 0), [2, 0], "data of shape [2, 0] must contain 0 values, got 4"),
]


@pytest.mark.parametrize(("spec", "shape", "message"), SHAPES)
def test_shapes_that_lie(spec: tuple[int, ...], shape: Any, message: str) -> None:
    reader = make_reader("float32", spec)
    assert message in refuse(reader.read_flat, [1, 2, 3, 4], shape)
    raw = refuse(reader.read_raw, np.ones(4, np.float32).tobytes(), shape)
    assert message.partition("must hold")[0] in raw or "binary data of shape" in raw


@pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
def test_count_of_raw_bytes_must_match_shape(size: int) -> None:
    message = refuse(make_reader().read_raw, bytes(size), [2, 2])
    assert message == f"input 'x': binary data of shape [2, 2] must have 16 bytes, got {size}"


def test_bytes_of_boolean_other_than_one_are_true() -> None:
    found = make_reader("bool", (-1,)).read_raw(b"\x00\x01\x02\xff", [4])
    assert found.tobytes() == b"\x00\x01\x01\x01"


@pytest.mark.parametrize(
    ("content", "shape", "message"),
    [
        (b"\x01", [1], "an element ends at byte 4 of 1"),
        (struct.pack("<I", 5) + b"abc", [1], "an element ends at byte 9 of 7"),
        (struct.pack("<I", 0xFFFFFFFF), [1], "an element ends at byte 4294967299 of 4"),
        (struct.pack("<I", 1) + b"a", [2], "must contain 2 elements, got 1"),
        (struct.pack("<I", 1) + b"a" + struct.pack("<I", 0), [1], "must contain 1 elements, got 2"),
        (b"", [1], "must contain 1 elements, got 0"),
    ],
)
def test_raw_texts_that_lie(content: bytes, shape: list[int], message: str) -> None:
    assert message in refuse(make_reader("bytes", (-1,)).read_raw, content, shape)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bytes"])
def test_tower_of_lists_is_refused(dtype: str) -> None:
    tower: Any = []
    for _ in range(600):
        tower = [tower]
    message = refuse(make_reader(dtype).read_nested, tower)
    assert "nested deeper than 32 lists" in message or "rows of different lengths" in message


def test_dimensions_without_batch() -> None:
    reader = make_reader("float32", ())
    assert reader.read_flat([7], []).tolist() == 7
    assert reader.read_raw(struct.pack("<f", 7), []).tolist() == 7
    assert "data must be a list, got a number" in refuse(reader.read_flat, 7, [])
    empty = make_reader("float32", (0, 3))
    assert empty.read_flat([], [0, 3]).shape == empty.read_raw(b"", [0, 3]).shape == (0, 3)


@pytest.mark.parametrize("data", [None, "abc", {"0": 1}, 7, True])
def test_data_that_is_no_list(data: Any) -> None:
    assert f"data must be a list, got {name_type(data)}" in refuse(make_reader().read_flat, data, [1, 2])


def test_long_text_among_numbers_costs_its_own_length() -> None:
    values: list[Any] = [0.0] * 100_000
    values[7] = "x" * 1_000_000
    for dtype in ("float32", "int32", "bool"):
        tracemalloc.start()
        assert "got" in refuse(make_reader(dtype, (-1,)).read_nested, values)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20 << 20


@pytest.mark.parametrize("found", ["FP64", "fp32", "", None, 3, ["FP32"], "FP32" * 1000])
def test_another_datatype(found: Any) -> None:
    message = refuse(make_reader().check_datatype, found)
    assert message.startswith("input 'x': datatype must be FP32, got ")
    make_reader().check_datatype("FP32")


def test_texts_for_model_without_transform_are_refused_with_reason() -> None:
    message = refuse(make_reader().check_datatype, "BYTES")
    assert message == ("input 'x': datatype must be FP32, got 'BYTES': strings and files need a model with a transform")
    make_reader("bytes").check_datatype("BYTES")


def test_missing_and_unknown_names() -> None:
    expected = {"a": 1, "b": 2}
    check_names(["b", "a"], expected)
    assert refuse(check_names, ["a"], expected) == "input 'b': missing, got 'a'"
    assert refuse(check_names, [], expected) == "input 'a': missing, got none"
    assert refuse(check_names, ["a", "c", "b"], expected) == "input 'c': unknown, expected 'a', 'b'"


def test_values_in_errors_are_shortened() -> None:
    assert len(shorten("x" * sys.getrecursionlimit())) <= 201
    assert len(join("name" + str(index) for index in range(10_000))) <= 201
    assert shorten("a\nb") == "'a\\nb'"
