"""What a server may answer to rows by column names, from a reading of the request that shares no code with it."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tests.fuzz.cases import Case
from tests.fuzz.targets import read_json
from tests.support.models.visits import LENGTH, compute_visit
from tests.support.serving.serving_client import _CONTENTS, DATATYPES, Answer, messages, read_message, read_v1, read_v2

_COLUMNS = ("age", "income", "city", "tokens")
_INTEGERS = {f"{sign}INT{bits}": (sign, bits) for sign in ("", "U") for bits in (8, 16, 32, 64)}
_FLOATS = ("FP16", "FP32", "FP64")


class UnreadableRowsError(Exception):
    """Rows that a careful server refuses."""


def check_rows(case: Case, answer: Answer) -> str:
    """Return the fault of a response with status 200; empty for none."""
    is_v1 = case.path.startswith("/v1")
    try:
        rows = _read_instances(case) if is_v1 else _read_columns(_READERS[case.is_grpc](case))
        if rows is None:
            return ""
        expected = np.array([compute_visit(*row) for row in rows])
    except UnreadableRowsError as error:
        return f"accepted, although {error}"
    except RecursionError:
        return ""
    try:
        found = (read_v1(answer, ["output"]) if is_v1 else read_message(answer) if case.is_grpc else read_v2(answer))[
            "output"
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"the answer cannot be read ({error!r}): {answer.body[:200]!r}"
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    with np.errstate(all="ignore"):
        difference = np.abs(found - expected) / np.maximum(np.abs(expected), 1)
    return "" if difference.max(initial=0) <= 1e-5 else f"differs by {difference.max():.3g}"


def _load(body: bytes) -> dict[str, Any]:
    try:
        value = read_json(body)
    except ValueError as error:
        raise UnreadableRowsError(f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableRowsError("it is no object")
    return value


def _read_instances(case: Case) -> list[tuple[float, float, str, list[int]]] | None:
    """Return the rows; None for the packed form, which other cases are about."""
    value = _load(case.body)
    rows = value.get("instances", value.get("inputs"))
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UnreadableRowsError(f"instances are {rows!r:.80}")
    if any("features_numbers" in row for row in rows):
        return None
    return [_read_row(row) for row in rows]


def _read_row(row: dict[str, Any]) -> tuple[float, float, str, list[int]]:
    if missing := [name for name in _COLUMNS if name not in row]:
        raise UnreadableRowsError(f"a row has no {missing[0]}")
    return (
        _read_number(row["age"]),
        _read_number(row["income"]),
        _read_text(row["city"]),
        _read_list(row["tokens"]),
    )


def _read_number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise UnreadableRowsError(f"a number is {value!r:.60}")
    try:
        number = float(np.float32(float(value)))
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnreadableRowsError(f"a number is {value!r:.60}")
    return number


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            pass
    raise UnreadableRowsError(f"a text is {value!r:.60}")


def _read_list(value: Any) -> list[int]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise UnreadableRowsError(f"a list is {value!r:.60}") from None
    if not isinstance(value, list) or len(value) > LENGTH:
        raise UnreadableRowsError(f"a list is {value!r:.60}")
    for item in value:
        if not isinstance(item, int) or not -(2**31) <= item < 2**31:
            raise UnreadableRowsError(f"a list holds {item!r:.60}")
    return value


def _read_http(case: Case) -> list[dict[str, Any]]:
    """Return the tensors of V2 by HTTP, with the data of binary ones."""
    lengths = [int(text) for name, text in case.headers if name == "Inference-Header-Content-Length"]
    length = lengths[0] if lengths else len(case.body)
    if not 0 <= length <= len(case.body):
        raise UnreadableRowsError(f"its header has {length} bytes of {len(case.body)}")
    tensors, tail = _load(case.body[:length]).get("inputs"), case.body[length:]
    if not isinstance(tensors, list) or not all(isinstance(tensor, dict) for tensor in tensors):
        raise UnreadableRowsError(f"inputs are {tensors!r:.80}")
    for tensor in tensors:
        parameters = tensor.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            continue
        if type(size) is not int or not 0 <= size <= len(tail) or tensor.get("data") is not None:
            raise UnreadableRowsError(f"{tensor.get('name')!r:.40} has {size!r:.40} bytes of {len(tail)}")
        tensor["data"], tail = _decode(tail[:size], tensor.get("datatype")), tail[size:]
    if tail:
        raise UnreadableRowsError(f"{len(tail)} bytes follow the data")
    return tensors


def _read_message(case: Case) -> list[dict[str, Any]]:
    """Return a gRPC message's tensors as JSON has them."""
    try:
        message = messages.ModelInferRequest.FromString(case.body)
    except DecodeError as error:
        raise UnreadableRowsError(f"it is no message: {error}") from None
    raw, tensors = list(message.raw_input_contents), []
    if raw and len(raw) != len(message.inputs):
        raise UnreadableRowsError(f"{len(raw)} raw contents are there for {len(message.inputs)} inputs")
    for index, tensor in enumerate(message.inputs):
        filled = [field.name for field, _ in tensor.contents.ListFields()]
        wanted = "bytes_contents" if tensor.datatype == "BYTES" else _CONTENTS.get(tensor.datatype)
        if tensor.name in _COLUMNS and filled != ([] if raw else [wanted]):
            raise UnreadableRowsError(f"{tensor.name} has {filled} beside {len(raw)} raw contents")
        data: Any = _decode(raw[index], tensor.datatype) if raw else None
        if filled and not raw:
            data = [
                value.decode(errors="replace") if isinstance(value, bytes) else value
                for value in getattr(tensor.contents, filled[0])
            ]
        tensors.append({"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": data})
    return tensors


_READERS = {False: _read_http, True: _read_message}


def _decode(content: bytes, datatype: Any) -> list[Any] | None:
    """Return the cells of raw bytes; None if they are none of the datatype."""
    if datatype == "BYTES":
        cells = []
        while content:
            (size,) = struct.unpack("<I", content[:4]) if len(content) >= 4 else (len(content),)
            if size > len(content) - 4:
                return None
            cells.append(content[4 : 4 + size].decode(errors="replace"))
            content = content[4 + size :]
        return cells
    dtype = next((name for name, found in DATATYPES.items() if found == datatype), None)
    if dtype is None or len(content) % np.dtype(dtype).itemsize:
        return None
    return list(np.frombuffer(content, dtype).tolist())


def _read_columns(tensors: list[dict[str, Any]]) -> list[tuple[float, float, str, list[int]]] | None:
    names = [tensor.get("name") for tensor in tensors]
    if "features_numbers" in names:
        return None
    for name in _COLUMNS:
        if names.count(name) != 1:
            raise UnreadableRowsError(f"{name} is there {names.count(name)} times")
    columns = {tensor["name"]: _read_tensor(tensor) for tensor in tensors if tensor.get("name") in _COLUMNS}
    counts = set(map(len, columns.values()))
    if len(counts) != 1:
        raise UnreadableRowsError(f"columns have {counts} rows")
    return [_read_row(dict(zip(columns, cells, strict=True))) for cells in zip(*columns.values(), strict=True)]


def _read_tensor(tensor: dict[str, Any]) -> list[Any]:
    """Return a column's cells."""
    name, datatype, shape, data = (tensor.get(key) for key in ("name", "datatype", "shape", "data"))
    if not isinstance(shape, list) or not shape or any(type(size) is not int or size < 1 for size in shape):
        raise UnreadableRowsError(f"{name} has the shape {shape!r:.60}")
    if not isinstance(datatype, str):
        raise UnreadableRowsError(f"{name} has the datatype {datatype!r:.40}")
    if not isinstance(data, list):
        raise UnreadableRowsError(f"{name} has the data {data!r:.60}")
    flat = _flatten(data)
    if len(flat) != math.prod(shape):
        raise UnreadableRowsError(f"{name} has {len(flat)} values for {shape}")
    if (datatype == "BYTES") != (name == "city") and name != "tokens":
        raise UnreadableRowsError(f"{name} has the datatype {datatype!r:.40}")
    if name == "tokens" and datatype != "BYTES":
        if len(shape) != 2:
            raise UnreadableRowsError(f"{name} has the shape {shape}")
        cells = [_read_element(value, datatype) for value in flat]
        width = shape[1]
        return [cells[start : start + width] for start in range(0, len(cells), width)]
    if len(shape) > 2 or shape[1:] not in ([], [1]):
        raise UnreadableRowsError(f"{name} has the shape {shape}")
    if datatype == "BYTES":
        return [_read_text(value) for value in flat]
    return [_read_element(value, datatype) for value in flat]


def _read_element(value: Any, datatype: Any) -> int | float:
    if datatype == "BOOL" and isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableRowsError(f"an element of {datatype!r:.40} is {value!r:.60}")
    if datatype in _FLOATS:
        return value if datatype != "FP16" else float(np.float16(value))
    if datatype in _INTEGERS and isinstance(value, int):
        sign, bits = _INTEGERS[datatype]
        least, most = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if least <= value <= most:
            return value
    raise UnreadableRowsError(f"an element of {datatype!r:.40} is {value!r:.60}")


def _flatten(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _flatten(value) if isinstance(value, list) else [value]
    return found
