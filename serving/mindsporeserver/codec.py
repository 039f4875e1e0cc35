"""Requests to arrays and arrays to responses, for KServe's V1 and V2; what does not fit raises InvalidInput (400)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from kserve.errors import InvalidInput
from kserve.protocol.infer_type import InferInput, InferOutput, InferRequest, InferResponse
from kserve.utils.numpy_codec import from_np_dtype

from kfp_mindspore.bundle import TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

# What JSON may hold for a dtype of a kind: numbers with a point are no integers, and nothing else is a boolean.
_ACCEPTED = {"f": "fiu", "c": "fiu", "i": "iu", "u": "iu", "b": "b"}
_NAMES = {"f": "numbers", "i": "integers", "u": "integers", "b": "booleans", "U": "texts", "O": "nulls or mixed values"}


def name_datatype(dtype: str) -> str:
    """Return V2's name of a NumPy dtype, such as FP32."""
    name: str | None = from_np_dtype(np.dtype(dtype))
    if name is None:
        raise InvalidInput(f"dtype {dtype} has no name in the V2 protocol")
    return name


def describe(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Return V2's metadata of inputs or outputs, -1 for a free dimension."""
    return [{"name": spec.name, "datatype": name_datatype(spec.dtype), "shape": list(spec.shape)} for spec in specs]


def decode_v1(payload: Any, specs: Sequence[TensorSpec]) -> Arrays:
    """Read a V1 body: `instances` holds one nested list a row or, with several inputs, one object a row.

    Args:
        payload: What the body's JSON held.
        specs: The inputs that are accepted.

    Raises:
        InvalidInput: Naming the input, what was expected and what was found.
    """
    if not isinstance(payload, Mapping):
        found = "bytes (is the Content-Type application/json?)" if isinstance(payload, bytes) else _name_type(payload)
        raise InvalidInput(f"body: must be a JSON object with 'instances', got {found}")
    if "instances" not in payload:
        raise InvalidInput(f"instances: missing, got fields {_join(payload) or 'none'}")
    rows = payload["instances"]
    if not isinstance(rows, list):
        raise InvalidInput(f"instances: must be a list, got {_name_type(rows)}")
    if rows and all(isinstance(row, Mapping) for row in rows):
        return {
            spec.name: _read_json([_get(row, index, spec.name, specs) for index, row in enumerate(rows)], spec)
            for spec in specs
        }
    if len(specs) > 1:
        raise InvalidInput(
            f"instances: must be objects with {_join(spec.name for spec in specs)}, got "
            f"{_name_type(next((row for row in rows if not isinstance(row, Mapping)), rows))}"
        )
    return {specs[0].name: _read_json(rows, specs[0])}


def encode_v1(outputs: Arrays) -> dict[str, Any]:
    """Return a V1 response: one nested list a row or, with several outputs, one object a row."""
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values())).tolist()}
    columns = {name: array.tolist() for name, array in outputs.items()}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def decode_v2(request: InferRequest, specs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Arrays:
    """Read a V2 request, JSON, binary or gRPC.

    Args:
        request: The request.
        specs: The inputs that are accepted.
        outputs: The outputs that may be asked for.

    Raises:
        InvalidInput: Naming the input, what was expected and what was found.
    """
    expected = {spec.name: spec for spec in specs}
    arrays: Arrays = {}
    for tensor in request.inputs:
        if tensor.name not in expected:
            raise InvalidInput(f"input {tensor.name!r}: unknown, expected {_join(expected)}")
        if tensor.name in arrays:
            raise InvalidInput(f"input {tensor.name!r}: given twice")
        arrays[tensor.name] = _read_tensor(tensor, expected[tensor.name])
    names = [spec.name for spec in outputs]
    for output in request.request_outputs or ():
        if output.name not in names:
            raise InvalidInput(f"output {output.name!r}: unknown, expected {_join(names)}")
    return arrays


def encode_v2(outputs: Arrays, request: InferRequest, model_name: str) -> InferResponse:
    """Return a V2 response with the outputs that were asked for, in the form that was asked for."""
    wanted = {output.name for output in request.request_outputs or ()} or set(outputs)
    return InferResponse(
        response_id=request.id or "",
        model_name=model_name,
        infer_outputs=[_make_output(name, array, request) for name, array in outputs.items() if name in wanted],
        use_binary_outputs=request.use_binary_outputs,
        requested_outputs=request.request_outputs,
    )


def _make_output(name: str, array: NDArray[Any], request: InferRequest) -> InferOutput:
    output = InferOutput(name=name, shape=list(array.shape), datatype=name_datatype(array.dtype.name), data=array)
    if request.from_grpc:
        # A gRPC client gets back the form that it sent: raw bytes, or typed contents, which do not exist for float16.
        # (kserve 0.21 cannot turn an array into bytes itself here; over HTTP it can.)
        output.set_data_from_numpy(array, binary_data=request.use_binary_outputs or array.dtype == np.float16)
    return output


def _read_tensor(tensor: InferInput, spec: TensorSpec) -> NDArray[Any]:
    expected = name_datatype(spec.dtype)
    if tensor.datatype != expected:
        raise InvalidInput(f"input {spec.name!r}: datatype must be {expected}, got {tensor.datatype}")
    shape = tuple(tensor.shape)
    if mismatch := spec.find_mismatch(spec.dtype, shape):
        raise InvalidInput(f"input {spec.name!r}: {mismatch}")
    count, dtype = math.prod(shape), np.dtype(spec.dtype)
    if tensor._raw_data is not None:
        if len(tensor._raw_data) != count * dtype.itemsize:
            raise InvalidInput(
                f"input {spec.name!r}: binary data of shape {list(shape)} must have {count * dtype.itemsize} bytes, "
                f"got {len(tensor._raw_data)}"
            )
        return np.frombuffer(tensor._raw_data, dtype).reshape(shape)
    array = _read_json(tensor.data if tensor.data is not None else [], spec)
    if array.size != count:
        raise InvalidInput(
            f"input {spec.name!r}: data of shape {list(shape)} must hold {count} values, got {array.size}"
        )
    return array.reshape(shape)


def _read_json(values: Any, spec: TensorSpec) -> NDArray[Any]:
    """Make an array of nested lists, without turning texts into numbers or losing digits of integers."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise InvalidInput(f"input {spec.name!r}: shape must be {spec.shape}, got rows of different lengths") from None
    dtype = np.dtype(spec.dtype)
    if array.size and array.dtype.kind not in _ACCEPTED.get(dtype.kind, ""):
        raise InvalidInput(
            f"input {spec.name!r}: must hold {_NAMES.get(dtype.kind, spec.dtype)} ({spec.dtype}), got "
            f"{_NAMES.get(array.dtype.kind, array.dtype.name)}"
        )
    if array.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InvalidInput(
                f"input {spec.name!r}: values must be {limits.min} to {limits.max} ({spec.dtype}), got {array.min()} "
                f"to {array.max()}"
            )
    return array.astype(dtype)


def _get(row: Any, index: int, name: str, specs: Sequence[TensorSpec]) -> Any:
    if name not in row:
        raise InvalidInput(f"instances[{index}]: input {name!r} missing, got {_join(row) or 'none'}")
    unknown = [key for key in row if key not in {spec.name for spec in specs}]
    if unknown:
        raise InvalidInput(
            f"instances[{index}]: input {unknown[0]!r} unknown, expected {_join(spec.name for spec in specs)}"
        )
    return row[name]


def _join(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


def _name_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
