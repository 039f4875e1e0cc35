"""Example rows for a network whose inputs are not declared."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.rows import FORMATS
from kfp_mindspore.data.sources.delimiters import resolve_delimiter
from kfp_mindspore.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_example(path: Path | str, count: int) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Read rows in `rows.read_rows`'s formats.

    64-bit numbers become 32-bit ones, as in training. All columns of a CSV file are one input.

    Args:
        path: The file.
        count: How many of the first rows to read.

    Returns:
        Arrays by input name, or one array where the file names no input.

    Raises:
        NotFoundError: The file does not exist.
        UserError: The format is unknown, or values are no numbers or differ in shape; the message names the input.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: must end in {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}")
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    try:
        columns = _read_columns(path)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read as {path.suffix}: {error}") from None
    arrays = {name: _to_numbers(path, name, values)[:count] for name, values in columns.items()}
    if not arrays or not all(map(len, arrays.values())):
        raise UserError(f"{path}: has no rows")
    is_one = len(arrays) == 1 and (path.suffix == ".npz" or "" in arrays)
    return next(iter(arrays.values())) if is_one else arrays


def _read_columns(path: Path) -> dict[str, Any]:
    """Return values by input name; "" for rows without names."""
    import numpy as np

    if path.suffix == ".npz":
        loaded = np.load(path, allow_pickle=False)
        return {name: loaded[name] for name in loaded.files}
    if path.suffix == ".npy":
        return {"": np.load(path, allow_pickle=False)}
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        return {"": [row for row in csv.reader(text.splitlines(), delimiter=resolve_delimiter(path)) if row][1:]}
    if path.suffix == ".jsonl":
        value = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        value = json.loads(text)
        if isinstance(value, Mapping) and set(value) in ({"instances"}, {"inputs"}):
            (value,) = value.values()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        names = list(value[0])
        for index, row in enumerate(value):
            if list(row) != names and set(row) != set(names):
                raise ValueError(f"row {index + 1}: expected {', '.join(names)}, got {', '.join(row)}")
        return {name: [row[name] for row in value] for name in names}
    return {"": value}


def _to_numbers(path: Path, name: str, values: Any) -> NDArray[Any]:
    import numpy as np

    try:
        array = np.asarray(values)
        array = array.astype(np.float64) if array.dtype.kind in "US" else array
    except ValueError as error:
        raise UserError(f"{path}: {name or 'rows'}: must be numbers with equal shapes ({error})") from None
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise UserError(f"{path}: {name or 'rows'}: must be rows of numbers, got {values!s:.80}")
    return array.astype({"float64": "float32", "int64": "int32", "uint64": "uint32"}.get(array.dtype.name, array.dtype))
