"""V2 bodies: JSON and the binary-data extension, in both directions, with headers and sizes that lie."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kfp_mindspore.formats.bundle import TensorSpec
from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols import v2
from mindsporeserver.protocols.tensors import InputReader

DATATYPES = {
    "bool": "BOOL",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
OUTPUTS = ("y", "z")


def make_readers(**specs: tuple[str, tuple[int, ...]]) -> dict[str, InputReader]:
    return {name: InputReader(TensorSpec(name, *spec), finite=True) for name, spec in specs.items()}


ONE = make_readers(x=("float32", (-1, 2)))
TWO = make_readers(x=("float32", (-1, 2)), n=("int64", (-1,)))
TEXTS = make_readers(t=("bytes", (-1,)))


def make_tensor(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5], **changes}
    return {key: value for key, value in tensor.items() if value is not ...}


def make_binary(tensors: list[dict[str, Any]], tail: bytes, **fields: Any) -> tuple[bytes, str]:
    head = json.dumps({"inputs": tensors, **fields}).encode()
    return head + tail, str(len(head))


def decode(value: Any, readers: dict[str, InputReader] = ONE) -> v2.Inference:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return v2.decode(body, None, readers, OUTPUTS)


def refuse(*arguments: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        v2.decode(*arguments)
    assert caught.value.status == 400
    assert len(caught.value.message) < 600
    return caught.value.message


def split(answer: v2.ResponseBody) -> tuple[dict[str, Any], bytes]:
    length = len(answer.body) if answer.json_length is None else answer.json_length
    return orjson.loads(answer.body[:length]), answer.body[length:]


def test_flat_and_nested_data() -> None:
    for data in ([1, 2.5, 3, 4], [[1, 2.5], [3, 4]], [[[1], [2.5]], [[3], [4]]]):
        found = decode({"inputs": [make_tensor(shape=[2, 2], data=data)]})
        assert (found.id, found.outputs, found.binary) == ("", None, False)
        assert found.inputs["x"].dtype == np.float32
        assert found.inputs["x"].tolist() == [[1, 2.5], [3, 4]]


def test_inputs_in_any_order_and_form() -> None:
    numbers = {"name": "n", "shape": [1], "datatype": "INT64"}
    raw = {"parameters": {"binary_data_size": 8}}
    for tensors, tail in (
        ([make_tensor(), {**numbers, **raw}], struct.pack("<q", -7)),
        (
            [{**numbers, **raw}, make_tensor(data=..., parameters={"binary_data_size": 8, "more": True})],
            struct.pack("<q2f", -7, 1, 2.5),
        ),
        (
            [make_tensor(data=..., parameters={"binary_data_size": 8}), {**numbers, "data": [-7], "parameters": {}}],
            struct.pack("<2f", 1, 2.5),
        ),
    ):
        found = v2.decode(*make_binary(tensors, tail), TWO, OUTPUTS).inputs
        assert (found["x"].tolist(), found["n"].tolist()) == ([[1, 2.5]], [-7])


@pytest.mark.parametrize(
    ("fields", "outputs", "binary"),
    [
        ({}, None, False),
        ({"outputs": None, "parameters": None, "id": None}, None, False),
        ({"outputs": []}, None, False),
        ({"parameters": {"binary_data_output": True}}, None, True),
        ({"outputs": [{"name": "z"}]}, {"z": False}, False),
        (
            {"outputs": [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}]},
            {"z": True, "y": False},
            False,
        ),
        (
            {
                "outputs": [{"name": "y"}, {"name": "z", "parameters": {"binary_data": False}}],
                "parameters": {"binary_data_output": True},
            },
            {"y": True, "z": False},
            True,
        ),
        ({"parameters": {"priority": 3, "x": "y"}, "more": [1]}, None, False),
    ],
)
def test_requested_outputs_and_their_form(fields: Any, outputs: Any, binary: bool) -> None:
    found = decode({"inputs": [make_tensor()], **fields})
    assert (found.outputs, found.binary) == (outputs, binary)


@pytest.mark.parametrize("request_id", ["", "42", "ü€😀", "a" * 10_000])
def test_id_is_clients(request_id: str) -> None:
    found = decode({"id": request_id, "inputs": [make_tensor()]})
    assert found.id == request_id
    assert split(v2.encode({}, found, "m", "1"))[0]["id"] == request_id


INPUT = make_tensor()
BAD: list[tuple[Any, str]] = [
    (b"", "body: not valid JSON"),
    (b"{", "body: not valid JSON"),
    (b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [NaN, 1]}]}', "not valid JSON"),
    (b"null", "body: must be a JSON object with 'inputs', got null"),
    ([INPUT], "body: must be a JSON object with 'inputs', got a list"),
    ({}, "inputs: must be a list of inputs, got none"),
    ({"inputs": None}, "inputs: must be a list of inputs, got null"),
    ({"inputs": INPUT}, "inputs: must be a list of inputs, got an object"),
    ({"inputs": []}, "inputs: must be a list of inputs, got an empty list"),
    ({"inputs": [[1, 2]]}, "inputs[0]: must be an object, got a list"),
    ({"inputs": [INPUT, None]}, "inputs[1]: must be an object, got null"),
    ({"inputs": [make_tensor(name=...)]}, "inputs[0].name: must be a string, got none"),
    ({"inputs": [make_tensor(name=["x"])]}, "inputs[0].name: must be a string, got a list"),
    ({"inputs": [make_tensor(name="y")]}, "input 'y': unknown, expected 'x'"),
    ({"inputs": [INPUT, INPUT]}, "input 'x': given twice"),
    ({"inputs": [make_tensor(datatype=...)]}, "datatype must be FP32, got None"),
    ({"inputs": [make_tensor(datatype="fp32")]}, "datatype must be FP32, got 'fp32'"),
    ({"inputs": [make_tensor(datatype="BYTES")]}, "strings and files need a model with a transform"),
    ({"inputs": [make_tensor(shape=...)]}, "shape must be a list of integers, got None"),
    ({"inputs": [make_tensor(shape=[2, 2])]}, "data of shape [2, 2] must contain 4 values, got 2"),
    ({"inputs": [make_tensor(data=...)]}, "input 'x': data is missing, and parameters.binary_data_size too"),
    ({"inputs": [make_tensor(data=None)]}, "data must be a list, got null"),
    ({"inputs": [make_tensor(data=[[1, 2], [3]])]}, "got rows of different lengths"),
    ({"inputs": [make_tensor(parameters=3)]}, "input 'x': parameters must be an object, got a number"),
    (
        {"inputs": [make_tensor(parameters={"binary_data_size": 8})]},
        "header Inference-Header-Content-Length is missing",
    ),
    ({"inputs": [make_tensor(parameters={"binary_data_size": "8"})]}, "binary_data_size must be a number of bytes"),
    ({"inputs": [make_tensor(parameters={"binary_data_size": -8})]}, "must be a number of bytes, got -8"),
    ({"inputs": [make_tensor(parameters={"binary_data_size": True})]}, "must be a number of bytes, got True"),
    ({"inputs": [make_tensor(parameters={"binary_data_size": 8.0})]}, "must be a number of bytes, got 8.0"),
    ({"inputs": [INPUT], "id": 42}, "id: must be a string, got a number"),
    ({"inputs": [INPUT], "parameters": [1]}, "parameters: must be an object, got a list"),
    ({"inputs": [INPUT], "parameters": {"binary_data_output": 1}}, "binary_data_output: must be true or false, got 1"),
    ({"inputs": [INPUT], "outputs": {"name": "y"}}, "outputs: must be a list, got an object"),
    ({"inputs": [INPUT], "outputs": ["y"]}, "outputs[0]: must be an object, got a string"),
    ({"inputs": [INPUT], "outputs": [{}]}, "output None: unknown, expected 'y', 'z'"),
    ({"inputs": [INPUT], "outputs": [{"name": {}}]}, "output {}: unknown, expected 'y', 'z'"),
    ({"inputs": [INPUT], "outputs": [{"name": "x"}]}, "output 'x': unknown, expected 'y', 'z'"),
    ({"inputs": [INPUT], "outputs": [{"name": "y"}] * 2}, "output 'y': requested twice"),
    ({"inputs": [INPUT], "outputs": [{"name": "y", "parameters": 1}]}, "outputs[0].parameters: must be an object"),
    (
        {"inputs": [INPUT], "outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]},
        "outputs[0].parameters.binary_data: must be true or false, got 'yes'",
    ),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_bodies_that_are_refused(value: Any, message: str) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    assert message in refuse(body, None, ONE, OUTPUTS)


def test_half_surrogate_pair_is_no_id() -> None:
    body = b'{"id": "\\ud800", "inputs": [%s]}' % json.dumps(INPUT).encode()
    message = refuse(body, None, ONE, OUTPUTS)
    message.encode()
    assert "id: must be text, got half of a surrogate pair" in message or "not valid JSON" in message


def test_missing_input_is_named() -> None:
    assert refuse(json.dumps({"inputs": [INPUT]}).encode(), None, TWO, OUTPUTS) == "input 'n': missing, got 'x'"


RAW = make_tensor(data=..., parameters={"binary_data_size": 8})
TAIL = struct.pack("<2f", 1, 2.5)


@pytest.mark.parametrize(
    "length",
    ["abc", "", "-1", "+10", " 10", "1_0", "1e2", "0x10", "\u0663", "9" * 17, "9" * 400, b"\xff", "10.0"],
)
def test_length_of_header_that_is_none(length: Any) -> None:
    body, _ = make_binary([RAW], TAIL)
    assert f"Inference-Header-Content-Length: must be 0 to {len(body)}" in refuse(body, length, ONE, OUTPUTS)


@pytest.mark.parametrize("shift", [-40, -1, 1, 4, 8])
def test_length_of_header_that_lies(shift: int) -> None:
    body, length = make_binary([RAW], TAIL)
    assert "not valid JSON" in refuse(body, str(int(length) + shift), ONE, OUTPUTS)
    assert "not valid JSON" in refuse(body, "0", ONE, OUTPUTS)
    assert "must be 0 to" in refuse(body, str(len(body) + 1), ONE, OUTPUTS)


@pytest.mark.parametrize(
    ("tensors", "tail", "message"),
    [
        ([RAW], TAIL[:-1], "binary_data_size must be at most 7, the rest of the body, got 8"),
        ([RAW], b"", "binary_data_size must be at most 0"),
        ([RAW], TAIL + b"x", "body: 1 bytes after the binary data of all inputs"),
        ([make_tensor()], TAIL, "body: 8 bytes after"),
        ([make_tensor(parameters={"binary_data_size": 8})], TAIL, "has both data and binary_data_size"),
        ([make_tensor(data=None, parameters={"binary_data_size": 8})], TAIL, "has both data and binary_data_size"),
        ([{**RAW, "parameters": {"binary_data_size": 1 << 62}}], TAIL, "binary_data_size must be at most 8"),
        ([{**RAW, "parameters": {"binary_data_size": 4}}], TAIL, "must have 8 bytes, got 4"),
        ([{**RAW, "shape": [2, 2]}], TAIL, "must have 16 bytes, got 8"),
        ([{**RAW, "shape": [1 << 61, 2]}], TAIL, "bytes, got 8"),
        ([{**RAW, "parameters": {"binary_data_size": 0}, "shape": [0, 2]}], b"", "shape must be (-1, 2), got (0, 2)"),
        ([RAW, RAW], TAIL * 2, "given twice"),
        ([RAW], struct.pack("<2f", 1, float("nan")), "must contain finite numbers"),
    ],
)
def test_binary_bodies_that_lie(tensors: list[Any], tail: bytes, message: str) -> None:
    body, length = make_binary(tensors, tail)
    assert message in refuse(body, length, ONE, OUTPUTS)
    assert message in refuse(body, length.encode(), ONE, OUTPUTS)


def test_header_whose_length_is_whole_body() -> None:
    body = json.dumps({"inputs": [INPUT]}).encode()
    assert v2.decode(body, str(len(body)), ONE, OUTPUTS).inputs["x"].tolist() == [[1, 2.5]]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-3, 300),
    st.integers(-1, 40) | st.just(1 << 63),
    st.binary(max_size=40),
    st.lists(st.integers(-2, 5) | st.just(1 << 62), max_size=3),
)
def test_any_binary_sizes_are_refused_or_read_exactly(length: int, size: int, tail: bytes, shape: list[int]) -> None:
    body, right = make_binary([{**RAW, "shape": shape, "parameters": {"binary_data_size": size}}], tail)
    for header in (str(length), right):
        try:
            found = v2.decode(body, header, ONE, OUTPUTS).inputs["x"]
        except InvalidRequestError:
            continue
        assert (header, size, list(found.shape)) == (right, len(tail), shape)
        assert found.tobytes() == tail


@pytest.mark.parametrize("dtype", DATATYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_response_parses_as_request(dtype: str, data: Any) -> None:
    raw = data.draw(st.booleans(), "raw")
    # JSON has neither NaN nor infinities, and -0.0 of them all comes back.
    options: dict[str, Any] = {"allow_nan": raw, "allow_infinity": raw} if dtype.startswith("float") else {}
    elements = hnp.from_dtype(np.dtype(dtype), **options)
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=4), elements=elements))
    asked = v2.Inference("7", {}, None, raw)
    head, tail = split(v2.encode({"x": array}, asked, "m", "3"))
    assert {key: head[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
    }
    (tensor,) = head["outputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("x", DATATYPES[dtype], list(array.shape))
    spec = TensorSpec("x", dtype, (-1,) * array.ndim)
    body, length = make_binary([{key: value for key, value in tensor.items() if value is not None}], tail)
    found = v2.decode(body, length, {"x": InputReader(spec, finite=False)}, ()).inputs["x"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert bool(tail) == raw


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=6), st.booleans())
def test_texts_sent_back_are_same(texts: list[bytes], raw: bool) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    head, tail = split(v2.encode({"t": array}, v2.Inference("", {}, None, raw), "m", "1"))
    (tensor,) = head["outputs"]
    assert tensor["datatype"] == "BYTES"
    body, length = make_binary([{key: value for key, value in tensor.items() if value is not None}], tail)
    assert v2.decode(body, length, TEXTS, ()).inputs["t"].tolist() == texts


def test_outputs_have_requested_order_and_form() -> None:
    outputs: dict[str, Any] = {
        "y": np.array([[1.5]], np.float32),
        "z": np.array([7], np.int64),
        "w": np.array([b"ab"], object),
    }
    asked = v2.Inference("", {}, {"w": True, "y": True, "z": False}, False)
    answer = v2.encode(outputs, asked, "m", "1")
    head, tail = split(answer)
    assert answer.json_length is not None
    assert [output["name"] for output in head["outputs"]] == ["w", "y", "z"]
    assert [output.get("parameters") for output in head["outputs"]] == [
        {"binary_data_size": 6},
        {"binary_data_size": 4},
        None,
    ]
    assert ["data" in output for output in head["outputs"]] == [False, False, True]
    assert tail == struct.pack("<I2sf", 2, b"ab", 1.5)
    everything, none = split(v2.encode(outputs, v2.Inference("", {}, None, False), "m", "1"))
    assert [output["data"] for output in everything["outputs"]] == [[1.5], [7], ["ab"]]
    assert none == b""


def test_nan_is_null_in_json_and_itself_in_bytes() -> None:
    outputs: dict[str, Any] = {"y": np.array([np.nan, np.inf, 1], np.float32)}
    head, _ = split(v2.encode(outputs, v2.Inference("", {}, None, False), "m", "1"))
    assert head["outputs"][0]["data"] == [None, None, 1]
    _, tail = split(v2.encode(outputs, v2.Inference("", {}, None, True), "m", "1"))
    assert tail == outputs["y"].tobytes()
