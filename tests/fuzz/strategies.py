"""The same kinds of bodies as hypothesis strategies: slow to make, but what fails is shrunk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.cases import Case
from tests.fuzz.targets import Target
from tests.support.serving.serving_client import DATATYPES, INFER, make_message, messages

_NUMBERS = st.integers() | st.floats(allow_nan=True) | st.sampled_from([2**31, 2**63, 2**64, -1, 0])
# Lone surrogates are allowed: JSON can escape them, UTF-8 cannot hold them.
_TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["image", "output", "FP32", "digits"])
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXTS
JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=4), max_leaves=20
)
_SIZES = st.integers(-2, 9) | st.sampled_from([64, 2**31, 2**63, 2**64, 10**30]) | st.just(1)
_DATATYPES = st.sampled_from([*DATATYPES.values(), "BYTES", "BF16", "fp32", ""]) | _TEXTS


def v1_cases(targets: Sequence[Target]) -> st.SearchStrategy[Case]:
    """V1: rows of any shape, of any values, named or not, or something else altogether."""
    target = st.sampled_from(targets)
    rows = st.lists(JSON | _lists(3) | _lists(4), max_size=4)
    named = st.lists(st.dictionaries(st.sampled_from(["image", "values", "index", "x"]), _lists(3) | JSON), max_size=3)
    bodies = st.fixed_dictionaries({"instances": rows | named}, optional={"signature_name": JSON}) | JSON
    return st.builds(_build_v1, target, bodies.map(_dump) | st.binary(max_size=60))


def v2_cases(targets: Sequence[Target]) -> st.SearchStrategy[Case]:
    """V2 in JSON: tensors whose fields are right, nearly right or anything."""
    return st.builds(_build_v2, st.sampled_from(targets), _v2_values().map(_dump) | st.binary(max_size=60))


def binary_cases(targets: Sequence[Target]) -> st.SearchStrategy[Case]:
    """V2 with binary data: any header, any bytes after it, and any statement about how long the header is."""
    lengths = (
        st.none() | st.integers().map(str) | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=6)
    )
    return st.builds(
        _build_binary, st.sampled_from(targets), _v2_values(), st.binary(max_size=600), lengths | st.just(None)
    )


def grpc_cases(targets: Sequence[Target]) -> st.SearchStrategy[Case]:
    """gRPC: messages with any fields, and any bytes."""
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
        ["image", "index", "values"]
    )
    tensors = st.lists(
        st.tuples(
            texts,
            _DATATYPES.filter(lambda text: text.isprintable()),
            st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 8), max_size=5),
            st.sampled_from([name for name in _FIELDS if name]),
            st.integers(0, 70),
        ),
        max_size=3,
    )
    raw = st.lists(st.binary(max_size=300), max_size=3)
    spoiled = st.builds(_spoil_message, st.sampled_from(targets), st.integers(0, 10**6), st.binary(max_size=8))
    built = st.builds(_build_message, st.sampled_from(targets), tensors, raw, texts)
    return (built | spoiled | st.binary(max_size=200)).map(lambda content: Case("grpc", INFER, content))


_FIELDS = [field.name for field in messages.InferTensorContents.DESCRIPTOR.fields]


def _lists(depth: int) -> st.SearchStrategy[Any]:
    inner: st.SearchStrategy[Any] = st.just(0.5) | _NUMBERS
    sizes = st.sampled_from([8, 8, 8, 1, 3])
    for _ in range(depth):
        # One item repeated, so that long lists cost one choice.
        inner = st.tuples(sizes, inner).map(lambda pair: [pair[1]] * pair[0])
    return inner


def _v2_values() -> st.SearchStrategy[Any]:
    tensors = st.fixed_dictionaries(
        {
            "name": st.sampled_from(["image", "values", "index"]) | _TEXTS,
            "shape": st.lists(_SIZES, max_size=5) | st.just([1, 1, 8, 8]) | st.just([1, 3]) | st.just([1]) | JSON,
            "datatype": st.sampled_from(["FP32", "INT32"]) | _DATATYPES,
        },
        optional={
            "data": st.sampled_from([[0.5] * 64, [1, 2, 3], [1]]) | st.lists(_LEAVES, max_size=70) | JSON,
            "parameters": st.fixed_dictionaries({"binary_data_size": _SIZES | st.just(256) | JSON}) | JSON,
        },
    )
    return (
        st.fixed_dictionaries(
            {"inputs": st.lists(tensors, max_size=3)},
            optional={
                "id": _TEXTS | JSON,
                "parameters": st.fixed_dictionaries({"binary_data_output": st.booleans() | JSON}) | JSON,
                "outputs": st.lists(st.fixed_dictionaries({"name": _TEXTS}, optional={"parameters": JSON}), max_size=3)
                | JSON,
            },
        )
        | JSON
    )


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


_HEADERS = (("Content-Type", "application/json"),)


def _build_v1(target: Target, body: bytes) -> Case:
    return Case("v1", f"/v1/models/{target.name}:predict", body, "POST", _HEADERS, "hypothesis")


def _build_v2(target: Target, body: bytes) -> Case:
    return Case("v2", f"/v2/models/{target.name}/infer", body, "POST", _HEADERS, "hypothesis")


def _build_binary(target: Target, value: Any, tail: bytes, length: str | None) -> Case:
    head = _dump(value)
    headers = (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(head)) if length is None else length),
    )
    return Case("binary", f"/v2/models/{target.name}/infer", head + tail, "POST", headers, "hypothesis")


def _build_message(target: Target, tensors: Sequence[Any], raw: Sequence[bytes], request_id: str) -> bytes:
    message = messages.ModelInferRequest(model_name=target.name, id=request_id, raw_input_contents=raw)
    for name, datatype, shape, field, count in tensors:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
        getattr(tensor.contents, field).extend([b"" if field == "bytes_contents" else 1] * count)
    content: bytes = message.SerializeToString()
    return content


def _spoil_message(target: Target, place: int, patch: bytes) -> bytes:
    content = bytearray(make_message(target.name, target.questions[0], raw=bool(place % 2)).SerializeToString())
    place %= len(content)
    content[place : place + len(patch)] = patch
    return bytes(content)
