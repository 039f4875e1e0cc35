"""Validation of a signature and of the options in its metadata."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.bundle import MODEL_FILE, Dimension, ModelBundle, Signature, TensorSpec, write_bundle
from kfp_mindspore.formats.model_options import parse_dimensions, parse_ranges, parse_serving

INPUTS = (
    TensorSpec("ids", "int32", (-1, -1)),
    TensorSpec("mask", "bool", (-1, -1)),
    TensorSpec("half", "float16", (-1, -1)),
    TensorSpec("image", "float32", (-1, 3, -1, -1)),
)
OUTPUTS = (TensorSpec("logits", "float32", (-1, -1, 5)), TensorSpec("label", "int64", (-1,)))
TOKENS = {"inputs": {"ids": 1, "mask": 1}, "outputs": {"logits": 1}, "sizes": [16, 32, 64], "pad": {"ids": 7}}


def test_valid_dimensions() -> None:
    tokens, height = parse_dimensions(
        {"tokens": TOKENS, "height": {"inputs": {"image": 2}, "sizes": [8]}}, INPUTS, OUTPUTS
    )
    assert tokens == Dimension("tokens", {"ids": 1, "mask": 1}, {"logits": 1}, (16, 32, 64), {"ids": 7, "mask": 0})
    assert height == Dimension("height", {"image": 2}, {}, (8,), {"image": 0})
    assert parse_dimensions({"tokens": tokens.to_dict()}, INPUTS, OUTPUTS) == (tokens,)


def change(**fields: Any) -> dict[str, Any]:
    return {"tokens": {**TOKENS, **fields}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"dimensions: must be an object of dimensions by name, got \[\]"),
        ({"tokens": 3}, "dimensions.tokens: must be an object with inputs, outputs, sizes and pad, got 3"),
        (change(size=[1]), "dimensions.tokens: unknown field 'size', expected inputs, outputs, sizes and pad"),
        (change(inputs=["ids"]), r"dimensions.tokens.inputs: must be an object, got \['ids'\]"),
        (change(inputs={}, pad={}), "dimensions.tokens.inputs: must name the axis of at least one input"),
        (change(inputs={"id": 1}, pad={}), "inputs: unknown 'id', expected 'ids', 'mask', 'half', 'image'"),
        (change(inputs={"ids": 0}), r"inputs.ids: must be an axis of shape \(-1, -1\) other than the batch, 1 to 1"),
        (change(inputs={"ids": 2}), "inputs.ids: .*, got 2"),
        (change(inputs={"ids": True}), "inputs.ids: .*, got True"),
        (change(inputs={"ids": 1, "image": 1}), r"inputs.image: axis 1 must be free \(-1\) in the signature, is 3"),
        (change(outputs={"logits": 2}), "outputs.logits: axis 2 must be free .*, is 5"),
        (change(outputs={"label": 1}), "outputs.label: must be an axis"),
        (change(sizes=[]), r"sizes: must be ascending whole numbers of at least 1, such as \[16, 32, 64\], got \[\]"),
        (change(sizes=[32, 16]), "sizes: must be ascending"),
        (change(sizes=[16, 16]), "sizes: must be ascending"),
        (change(sizes=[0, 16]), "sizes: must be ascending"),
        (change(sizes=[1.5]), "sizes: must be ascending"),
        (change(sizes="16"), "sizes: must be ascending"),
        (change(pad={"image": 0}), "pad: unknown 'image', expected 'ids', 'mask'"),
        (change(pad={"ids": "0"}), "pad.ids: must be a finite number, got '0'"),
        (change(pad={"ids": 1.5}), "pad.ids: must be a value of dtype int32, got 1.5"),
        (change(pad={"ids": 2**31}), "pad.ids: must be a value of dtype int32, got 2147483648"),
        (change(pad={"ids": float("nan")}), "pad.ids: must be a finite number, got nan"),
        (change(pad={"mask": 2}), "pad.mask: must be a value of dtype bool, got 2"),
        (change(inputs={"half": 1}, pad={"half": 1e5}), "pad.half: must be a value of dtype float16"),
        (change(inputs={"half": 1}, pad={"half": 10**400}), "pad.half: must be a value of dtype float16"),
        ({"a": TOKENS, "b": TOKENS}, "dimensions.b.inputs.ids: axis 1 is dimension 'a' already"),
    ],
)
def test_invalid_dimensions(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_dimensions(value, INPUTS, OUTPUTS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*TOKENS, "ids", "logits"]), inner),
    max_leaves=12,
)


@given(value=JSON, entry=st.dictionaries(st.sampled_from([*TOKENS, "x"]), JSON))
def test_any_json_is_parsed_or_rejected(value: Any, entry: dict[str, Any]) -> None:
    for candidate in (value, {"tokens": entry}, {"tokens": {**TOKENS, **entry}}):
        try:
            dimensions = parse_dimensions(candidate, INPUTS, OUTPUTS)
        except ValidationError:
            continue
        assert all(dimension.sizes and dimension.inputs for dimension in dimensions)


@given(sizes=st.sets(st.integers(1, 500), min_size=1), length=st.integers(0, 600))
def test_get_size_returns_smallest_sufficient_size(sizes: set[int], length: int) -> None:
    dimension = Dimension("n", {"ids": 1}, {}, tuple(sorted(sizes)), {"ids": 0})
    assert dimension.get_size(length) == min((size for size in sizes if size >= length), default=None)


@pytest.mark.parametrize("text", ["{", json.dumps(change(sizes=[2, 1]))])
def test_bundle_with_invalid_dimensions_is_rejected(tmp_path: Path, text: str) -> None:
    with write_bundle(tmp_path / "model") as writer:
        (writer.directory / MODEL_FILE).write_bytes(b"graph")
        writer.sign(Signature(INPUTS, OUTPUTS, "2.9.0", metadata={"dimensions": text}))
    with pytest.raises(ValidationError, match=r"signature.json: metadata is invalid: dimensions"):
        ModelBundle.open(tmp_path / "model")


def test_dimensions_round_trip(tmp_path: Path) -> None:
    with write_bundle(tmp_path / "model") as writer:
        (writer.directory / MODEL_FILE).write_bytes(b"graph")
        writer.sign(Signature(INPUTS, OUTPUTS, "2.9.0", metadata={"dimensions": json.dumps({"tokens": TOKENS})}))
    (tokens,) = ModelBundle.open(tmp_path / "model").signature.dimensions
    assert (tokens.name, tokens.sizes, tokens.get_size(17), tokens.get_size(65)) == ("tokens", (16, 32, 64), 32, None)


def test_bundle_keeps_ranges_of_inputs(tmp_path: Path) -> None:
    inputs = (replace(INPUTS[0], range=(-10, 9)), *INPUTS[1:])
    with write_bundle(tmp_path / "model") as writer:
        (writer.directory / MODEL_FILE).write_bytes(b"graph")
        # Metadata of version 0.1: the input's own range has precedence.
        writer.sign(Signature(inputs, OUTPUTS, "2.9.0", metadata={"ranges": '{"ids": [0, 5], "half": [0, 1]}'}))
    signature = ModelBundle.open(tmp_path / "model").signature
    assert signature.inputs == inputs
    assert signature.ranges == {"ids": (-10, 9), "half": (0, 1)}
    assert "range" not in json.loads((tmp_path / "model" / "signature.json").read_text())["inputs"][1]


@pytest.mark.parametrize("value", [None, [1], [2, 1], ["0", 1], {"least": 0}])
def test_spec_with_invalid_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must be \[least, greatest\]"):
        TensorSpec.from_dict({**INPUTS[0].to_dict(), "range": value})


def test_ranges_and_serving_are_read_from_metadata() -> None:
    metadata = {"ranges": '{"ids": [0, 49]}', "serving": '{"max_batch": 16, "max_delay_ms": 2.5}'}
    signature = Signature(INPUTS, OUTPUTS, "2.9.0", metadata=metadata)
    assert signature.ranges == {"ids": (0, 49)}
    assert signature.serving == {"max_batch": 16, "max_delay_ms": 2.5}
    plain = Signature(INPUTS, OUTPUTS, "2.9.0")
    assert (plain.ranges, plain.serving) == ({}, {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "ranges: must be an object of [least, greatest] by input"),
        ({"id": [0, 1]}, "ranges.id: must be an input, one of 'ids'"),
        ({"ids": [1]}, "ranges.ids: must be [least, greatest], got [1]"),
        ({"ids": [2, 1]}, "ranges.ids: must be [least, greatest], got [2, 1]"),
        ({"ids": [0, True]}, "ranges.ids: must be [least, greatest]"),
        ({"ids": [float("nan"), 1]}, "ranges.ids: must be [least, greatest]"),
    ],
)
def test_invalid_ranges(value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_ranges(value, INPUTS)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "serving: must be an object, got 3"),
        ({"max_batch": 0}, "serving.max_batch: must be a whole number from 1, got 0"),
        ({"max_queue": 2.5}, "serving.max_queue: must be a whole number from 1, got 2.5"),
        ({"max_delay_ms": -1}, "serving.max_delay_ms: must be 0 or more, got -1"),
        ({"max_delay_ms": float("inf")}, "serving.max_delay_ms: must be 0 or more"),
        ({"batch": 1}, "serving: unknown field 'batch', expected max_batch, max_delay_ms and max_queue"),
    ],
)
def test_invalid_serving_options(value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_serving(value)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch", "free"),
    [
        ([(-1, 4)], [(-1, 2)], -1, [(-1, 4)]),
        ([(5, 4), (5,)], [(5, 2)], 5, [(-1, 4), (-1,)]),
        ([(5, 4), (3,)], [(5, 2)], 0, [(5, 4), (3,)]),
        ([(4, 4)], [()], 0, [(4, 4)]),
    ],
)
def test_batch_size_is_common_first_dimension(
    inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], batch: int, free: list[tuple[int, ...]]
) -> None:
    signature = Signature(
        inputs=tuple(TensorSpec(f"i{number}", "float32", shape) for number, shape in enumerate(inputs)),
        outputs=tuple(TensorSpec(f"o{number}", "float32", shape) for number, shape in enumerate(outputs)),
        mindspore_version="2.9.0",
    )
    assert signature.batch_size == batch
    assert [spec.shape for spec in signature.free_batch(signature.inputs)] == free
