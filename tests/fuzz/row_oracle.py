"""What a server may answer to rows by column names, from a reading of the request that shares no code with it."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

import numpy as np

from tests.fuzz.cases import Case
from tests.fuzz.targets import read_json
from tests.support.serving_client import Answer, read_v1, read_v2
from tests.support.visits import LENGTH, compute_visit

_COLUMNS = ("age", "income", "city", "tokens")
_INTEGERS = {f"{sign}INT{bits}": (sign, bits) for sign in ("", "U") for bits in (8, 16, 32, 64)}
_FLOATS = ("FP16", "FP32", "FP64")


class UnreadableRowsError(Exception):
    """Rows that a careful server refuses."""


def check_rows(case: Case, answer: Answer) -> str:
    """Return the fault of a response with status 200; empty for none."""
    is_v1 = case.path.startswith("/v1")
    try:
        rows = _read_instances(case) if is_v1 else _read_columns(case)
        if rows is None:
            return ""
        expected = np.array([compute_visit(*row) for row in rows])
    except UnreadableRowsError as error:
        return f"accepted, although {error}"
    except RecursionError:
        return ""
    try:
        found = (read_v1(answer, ["output"]) if is_v1 else read_v2(answer))["output"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"the answer cannot be read ({error!r}): {answer.body[:200]!r}"
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    with np.errstate(all="ignore"):
        difference = np.abs(found - expected) / np.maximum(np.abs(expected), 1)
    return "" if difference.max(initial=0) <= 1e-5 else f"differs by {difference.max():.3g}"


def _load(case: Case) -> dict[str, Any]:
    try:
        value = read_json(case.body)
    except ValueError as error:
        raise UnreadableRowsError(f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableRowsError("it is no object")
    return value


def _read_instances(case: Case) -> list[tuple[float, float, str, list[int]]] | None:
    """Return the rows; None for the packed form, which other cases are about."""
    value = _load(case)
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


def _read_columns(case: Case) -> list[tuple[float, float, str, list[int]]] | None:
    tensors = _load(case).get("inputs")
    if not isinstance(tensors, list) or not all(isinstance(tensor, dict) for tensor in tensors):
        raise UnreadableRowsError(f"inputs are {tensors!r:.80}")
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
