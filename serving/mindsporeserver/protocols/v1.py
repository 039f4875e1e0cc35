"""KServe's V1 protocol: `{"instances": […]}` to arrays, arrays to `{"predictions": […]}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols.rows import RowReader
from mindsporeserver.protocols.tensors import InputReader, join, list_texts, name_type, shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_CONTAINERS = (dict, list)
# First bytes that clients send instead of JSON.
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x93NUMPY": "a NumPy file",
    b"PK\x03\x04": "an NPZ or ZIP file",
    b"\x1f\x8b": "gzip data, without the header Content-Encoding: gzip",
}


def parse_json(body: bytes | memoryview) -> Any:
    """Read JSON.

    Raises:
        InvalidRequestError: It is none; the message names the content where the first bytes show it.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"body: not valid JSON: {_describe_content(bytes(body)) or error}") from None


def _describe_content(body: bytes) -> str:
    """Return what a body that is no JSON is; empty for UTF-8 text."""
    for signature, name in _SIGNATURES.items():
        if body.startswith(signature):
            return f'got {name}; send an object such as {{"instances": [{{"b64": "…"}}]}}'
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"must be UTF-8 text, got byte {body[error.start]:#04x} at {error.start}"
    return ""


def decode(
    payload: Any, readers: Mapping[str, InputReader], rows_by_column: RowReader | None = None, body: bytes = b""
) -> Arrays:
    """Read a V1 body: `instances` holds one nested list per row, or one object with named inputs or columns per row.

    Args:
        payload: What the body's JSON held.
        readers: The inputs that are accepted.
        rows_by_column: Reads rows by column names; None to accept inputs only.
        body: The JSON, in which rows that are objects are searched for duplicate keys; empty for none.

    Raises:
        InvalidRequestError: Naming the input, what was expected and what was found.
    """
    if not isinstance(payload, dict):
        raise InvalidRequestError(f"body: must be a JSON object with 'instances', got {name_type(payload)}")
    # `inputs` is also accepted by kserve's own servers for scikit-learn and others.
    rows = payload.get("instances", payload.get("inputs"))
    if not isinstance(rows, list):
        if "instances" not in payload and "inputs" not in payload:
            raise InvalidRequestError(f"instances: missing, got fields {join(payload) or 'none'}")
        raise InvalidRequestError(f"instances: must be a list, got {name_type(rows)}")
    first = next(iter(readers.values()))
    if rows and isinstance(rows[0], dict) and not (first.is_bytes and rows[0].keys() == {"b64"}):
        if body:
            _refuse_duplicates(body, payload, rows)
        if rows_by_column is not None and rows_by_column.accepts(rows[0]):
            return rows_by_column.read_rows(rows)
        return {
            name: reader.read_nested([_get(row, index, name, readers) for index, row in enumerate(rows)])
            for name, reader in readers.items()
        }
    if rows_by_column is not None and rows_by_column.only_list and rows:
        return rows_by_column.read_lists(rows)
    if len(readers) > 1:
        columns = "" if rows_by_column is None else f", or the columns {join(rows_by_column.layout.columns)}"
        raise InvalidRequestError(
            f"instances: must be objects with {join(readers)}{columns}, got "
            f"{name_type(rows[0]) if rows else 'an empty list'}"
        )
    return {first.name: first.read_nested(rows)}


def read_parameters(holder: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return `parameters` of a request, or of an output; empty without them.

    Args:
        holder: Their object.
        where: The field in messages.

    Raises:
        InvalidRequestError: They are no object.
    """
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequestError(f"{where}: must be an object, got {name_type(parameters)}")
    return parameters


def _refuse_duplicates(body: bytes, payload: dict[str, Any], rows: list[Any]) -> None:
    """Refuse an object with a key twice, of which orjson keeps the last value.

    JSON has a colon for each key, so only a body with more colons than keys is parsed a second time.
    """
    colons = body.count(b":")
    # Most rows hold no objects: a fifth of the time.
    flat = len(payload) + sum([len(row) for row in rows if type(row) is dict])
    if colons == flat or colons == _count_keys(payload):
        return
    try:
        json.loads(body, object_pairs_hook=_check_pairs)
    except RecursionError:
        raise InvalidRequestError("body: nested too deeply") from None


def _count_keys(value: Any) -> int:
    """Return how many keys a value's objects have; lists that begin with a number or a text are not searched."""
    if isinstance(value, dict):
        return len(value) + sum(_count_keys(inner) for inner in value.values() if type(inner) in _CONTAINERS)
    if not isinstance(value, list) or not value or type(value[0]) not in _CONTAINERS:
        return 0
    return sum(map(_count_keys, value))


def _check_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(f"body: key {shorten(name)}: given twice in one object")
    return found


def encode(outputs: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a V1 body: one nested list a row or, with several outputs, one object a row. NaN becomes null."""
    return orjson.dumps({"predictions": list_rows(outputs)}, default=to_json, option=orjson.OPT_SERIALIZE_NUMPY)


def list_rows(outputs: Mapping[str, NDArray[Any]]) -> Any:
    """Return a V1 response's rows in a form that `orjson` with NumPy accepts."""
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    arrays = list(outputs.values())
    if any(array.ndim == 0 or len(array) != len(arrays[0]) for array in arrays):
        # Outputs without rows in common cannot be given row by row.
        return dict(outputs)
    # orjson calls `to_json` once per text.
    columns = [list_texts(array) if array.dtype.kind in "OSU" else array for array in arrays]
    return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def to_json(value: Any) -> Any:
    """Return what `orjson` cannot write itself: texts, arrays that are not contiguous, and odd dtypes."""
    if isinstance(value, np.ndarray):
        return list_texts(value) if value.dtype.kind in "OSU" else value.tolist()
    if isinstance(value, bytes):
        return list_texts(np.array([value], object))[0]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _get(row: Any, index: int, name: str, readers: Mapping[str, InputReader]) -> Any:
    if not isinstance(row, dict):
        raise InvalidRequestError(f"instances[{index}]: must be an object with {join(readers)}, got {name_type(row)}")
    if name not in row:
        raise InvalidRequestError(f"instances[{index}]: input {name!r} missing, got {join(row) or 'none'}")
    if len(row) != len(readers):
        unknown = next(key for key in row if key not in readers) if set(row) - set(readers) else None
        if unknown is not None:
            raise InvalidRequestError(f"instances[{index}]: input {shorten(unknown)} unknown, expected {join(readers)}")
    return row[name]
