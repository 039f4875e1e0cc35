"""Columns in a MindRecord file; MindSpore is imported when one is read or written.

The default header and page sizes (16 and 32 MB) make small files 32 times too large, so both are derived from the data.
Two equal files' bytes differ, hence a dataset's content digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, require_extra
from kfp_mindspore.formats.tensors import is_ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".mindrecord"
# MindRecord's own types; arrays with other types are stored as their bytes.
_TYPES = ("int32", "int64", "float32", "float64")
_LEAST_PAGE, _GREATEST_PAGE = 1 << 15, 1 << 28
_SMALL_HEADER, _HEADER, _SMALL = 1 << 16, 1 << 22, 1 << 24
_ROWS = 1000


def name_fields(names: Sequence[str]) -> list[str]:
    """Return each column's field: its name, or `column_N` for all when one has other than letters and digits."""
    if all(re.fullmatch(r"\w+", name, re.ASCII) for name in names):
        return list(names)
    return [f"column_{index}" for index in range(len(names))]


def write_columns(file: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write equal-length columns as one MindRecord file, and its index beside it (`.db`).

    Raises:
        UserError: There are no samples, or one is larger than 64 MB.
        MissingExtraError: MindSpore is not installed.
    """
    arrays = dict(zip(name_fields(list(columns)), columns.values(), strict=True))
    count = len(next(iter(arrays.values())))
    if not count:
        raise UserError(f"{file.name}: a MindRecord file needs at least one sample", hint="Use the storage npz.")
    sizes = [_get_size(array) for array in arrays.values()]
    page = _LEAST_PAGE
    while page < max(4 * sum(sizes), count * sum(sizes) // 64):
        page *= 2
    if 4 * sum(sizes) > _GREATEST_PAGE:
        raise UserError(f"{file.name}: a sample of {sum(sizes)} bytes is too large for MindRecord", hint="Use npz.")
    writer = _import_mindrecord().FileWriter(str(file), 1, overwrite=True)
    writer.set_header_size(_SMALL_HEADER if count * sum(sizes) < _SMALL else _HEADER)
    writer.set_page_size(min(page, _GREATEST_PAGE))
    writer.add_schema({field: _get_type(array) for field, array in arrays.items()}, "dataset")
    for start in range(0, count, _ROWS):
        rows = range(start, min(start + _ROWS, count))
        writer.write_raw_data([{field: _to_value(array, row) for field, array in arrays.items()} for row in rows])
    writer.commit()


def read_columns(file: Path, columns: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[Any]]:
    """Read what `write_columns` wrote.

    Args:
        file: The .mindrecord file.
        columns: dtype (`bytes` for bytes objects) and one sample's shape by name, in writing order.

    Raises:
        UserError: It cannot be read.
        MissingExtraError: MindSpore is not installed.
    """
    import numpy as np

    rows = _read_rows(file)
    arrays: dict[str, NDArray[Any]] = {}
    for field, (name, (dtype, shape)) in zip(name_fields(list(columns)), columns.items(), strict=True):
        if dtype == "bytes":
            arrays[name] = np.empty(len(rows), object)
            arrays[name][:] = [row[field] for row in rows]
        elif -1 in shape:
            arrays[name] = np.empty(len(rows), object)
            arrays[name][:] = [np.frombuffer(row[field], dtype).reshape(shape) for row in rows]
        elif dtype in _TYPES:
            arrays[name] = np.array([row[field] for row in rows], dtype).reshape(len(rows), *shape)
        else:
            content = b"".join(row[field] for row in rows)
            arrays[name] = np.frombuffer(content, dtype).reshape(len(rows), *shape).copy()
    return arrays


def read_fields(file: Path) -> dict[str, NDArray[Any]]:
    """Read any MindRecord file: numbers as arrays, texts and bytes as `bytes` objects.

    Raises:
        UserError: It cannot be read, or its arrays have different shapes.
        MissingExtraError: MindSpore is not installed.
    """
    import numpy as np

    rows = _read_rows(file)
    if not rows:
        raise UserError(f"{file}: has no samples")
    arrays: dict[str, NDArray[Any]] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, bytes | str):
            arrays[name] = np.empty(len(rows), object)
            arrays[name][:] = [value.encode() if isinstance(value, str) else value for value in values]
            continue
        try:
            arrays[name] = np.array(values)
        except ValueError:
            raise UserError(f"{file}: {name}: arrays must have equal shapes") from None
    return arrays


def _get_size(array: NDArray[Any]) -> int:
    """Return the largest value's size in bytes."""
    if is_ragged(array):
        return max(int(row.nbytes) for row in array)
    return max(map(len, array.flat)) if array.dtype == object else int(array[0].nbytes)


def _get_type(array: NDArray[Any]) -> dict[str, Any]:
    if array.dtype.name not in _TYPES:
        return {"type": "bytes"}
    # A floating number is written as JSON, which loses its type: as an array with one element it is written in binary.
    if array.ndim == 1 and array.dtype.kind == "i":
        return {"type": array.dtype.name}
    return {"type": array.dtype.name, "shape": list(array.shape[1:]) or [1]}


def _to_value(array: NDArray[Any], row: int) -> Any:
    value = array[row]
    if array.dtype == object:
        return value if isinstance(value, bytes) else value.tobytes()
    if array.dtype.name not in _TYPES:
        return value.tobytes()
    return int(value) if array.ndim == 1 and array.dtype.kind == "i" else value.reshape(array.shape[1:] or (1,))


def _read_rows(file: Path) -> list[dict[str, Any]]:
    reader_class = _import_mindrecord().FileReader
    try:
        # Several consumers return the rows in another order.
        reader = reader_class(str(file), num_consumer=1)
        try:
            return list(reader.get_next())
        finally:
            reader.close()
    except (RuntimeError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if "[ERROR]" in line), str(error)[:200])
        raise UserError(f"{file}: not a MindRecord file that can be read ({reason.strip()})") from None


def _import_mindrecord() -> Any:
    with require_extra("mindspore", "train"):
        from mindspore import mindrecord
    return mindrecord
