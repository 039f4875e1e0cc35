"""Rows for a prediction, read from JSON, JSON lines, CSV, NPZ and NPY files."""

from __future__ import annotations

import base64
import binascii
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

FORMATS = (".json", ".jsonl", ".csv", ".npz", ".npy")


def read_rows(path: Path | str, specs: Sequence[TensorSpec]) -> Arrays:
    """Read the rows in a file as arrays by input name.

    | format | content |
    |---|---|
    | .json | a list of rows, or an object: `{"instances": […]}`, `{"inputs": {…}}`, or a list of values by input name |
    | .jsonl | a row per line |
    | .csv | a header and a row per line: a column by input name, or all values of the only input, in order |
    | .npz, .npy | arrays by input name; of the only input by any name |

    A row is an object with values by input name, or the only input's value. A value with dtype bytes is a text, or
    `{"b64": "…"}`.

    Args:
        path: The file.
        specs: The inputs, with the row count as their first dimension.

    Returns:
        Arrays with shape (N, …) with the inputs' data types; shapes are validated by the model.

    Raises:
        NotFoundError: The file does not exist.
        UserError: The format is unknown, or an input is missing, unknown, or cannot be converted.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: must end in {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}")
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    try:
        if path.suffix in (".npz", ".npy"):
            columns = _read_numpy(path, specs)
        elif path.suffix == ".csv":
            columns = _read_csv(path, specs)
        else:
            columns = _read_json(path, specs)
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read as {path.suffix}: {error}") from None
    names = [spec.name for spec in specs]
    if sorted(columns) != sorted(names):
        raise UserError(f"{path}: the model has the inputs {', '.join(names)}, got {', '.join(columns) or 'none'}")
    arrays = {spec.name: _convert(path, columns[spec.name], spec) for spec in specs}
    if not all(map(len, arrays.values())):
        raise UserError(f"{path}: has no rows")
    return arrays


def _read_numpy(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    columns = {specs[0].name: loaded} if path.suffix == ".npy" else {name: loaded[name] for name in loaded.files}
    if len(specs) == len(columns) == 1:
        return {specs[0].name: next(iter(columns.values()))}
    return columns


def _read_json(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    value = (
        [json.loads(line) for line in text.splitlines() if line.strip()]
        if path.suffix == ".jsonl"
        else json.loads(text)
    )
    names = {spec.name for spec in specs}
    for wrapper in ("instances", "inputs"):
        if isinstance(value, Mapping) and set(value) == {wrapper} and wrapper not in names:
            value = value[wrapper]
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list):
        raise ValueError(f"expected a list or an object, got {type(value).__name__}")
    if value and all(isinstance(row, Mapping) and set(row) != {"b64"} for row in value):
        return {name: [_get(row, name, index) for index, row in enumerate(value)] for name in value[0]}
    if len(specs) != 1:
        raise ValueError(f"rows must be objects with {', '.join(sorted(names))}")
    return {specs[0].name: value}


def _read_csv(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    if header and not rows:
        raise ValueError(f"its only line is the header, {_shorten(header)}: expected a header and a line for each row")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"line {number}: has {len(row)} values, the header {len(header)}")
    names = [spec.name for spec in specs]
    if set(names) <= set(header):
        return {name: [row[header.index(name)] for row in rows] for name in names}
    if len(specs) == 1 and len(header) == _count(specs[0]):
        # pandas names an array's columns 0, 1, ….
        if all(map(_is_number, header)) and header != [str(index) for index in range(len(header))]:
            raise ValueError(f"line 1 has numbers only, {_shorten(header)}: expected a header above the rows")
        return {names[0]: rows}
    width = f", or {_count(specs[0])} columns" if len(specs) == 1 else ""
    raise ValueError(f"expected the columns {', '.join(names)}{width}, got {len(header)}: {_shorten(header)}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shorten(header: Sequence[str]) -> str:
    return ", ".join(header[:8]) + (", …" if len(header) > 8 else "")


def _convert(path: Path, values: Any, spec: TensorSpec) -> NDArray[Any]:
    import numpy as np

    if spec.dtype == BYTES:
        texts = np.array(values, object)
        texts.ravel()[:] = [_to_bytes(path, spec.name, value) for value in texts.ravel()]
        return texts
    try:
        array = np.asarray(values)
        dtype = np.dtype(spec.dtype)
        if array.dtype.kind in "US":
            array = array.astype(dtype if dtype.kind in "iu" else np.float64)
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise UserError(f"{path}: {spec.name}: must be {spec.dtype}, got {array.dtype}")
        array = array.astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {spec.name}: cannot be converted to {spec.dtype}: {error}") from None
    inner = spec.shape[1:]
    # A row in a CSV or a DataFrame is flat.
    if array.ndim == 2 and array.shape[1:] != inner and -1 not in inner and array.shape[1] == _count(spec):
        array = array.reshape(len(array), *inner)
    return array


def _count(spec: TensorSpec) -> int:
    import math

    return math.prod(spec.shape[1:])


def _get(row: Mapping[str, Any], name: str, index: int) -> Any:
    if name not in row:
        raise ValueError(f"row {index}: {name} is missing, got {', '.join(row)}")
    return row[name]


def _to_bytes(path: Path, name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("b64"), str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise UserError(f"{path}: {name}: not valid base 64: {error}") from None
    if isinstance(value, str):
        return value.encode()
    raise UserError(f'{path}: {name}: must be a text or {{"b64": "…"}}, got {value!r:.80}')
