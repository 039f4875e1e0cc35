"""Named arrays in one .npz file without pickle: bytes and lists with unequal lengths are stored with offsets."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import is_ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DATA, _VALUES, _OFFSETS = ".bytes", ".values", ".offsets"


def pack_columns(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return columns as plain arrays: `NAME.bytes` (uint8) and `NAME.offsets` (int64) for a column with bytes objects.

    Lists with unequal lengths become `NAME.values`, all rows one after the other, and `NAME.offsets`.

    Args:
        columns: Arrays by name; arrays with dtype object hold `bytes`, or arrays with one dtype.
    """
    import numpy as np

    packed: dict[str, NDArray[Any]] = {}
    for name, array in columns.items():
        if array.dtype != object:
            packed[name] = np.ascontiguousarray(array)
            continue
        values = array.ravel().tolist()
        if is_ragged(array):
            packed[name + _VALUES] = np.concatenate(values)
            packed[name + _OFFSETS] = np.cumsum([0, *map(len, values)], dtype=np.int64)
            continue
        packed[name + _DATA] = np.frombuffer(b"".join(values), np.uint8)
        packed[name + _OFFSETS] = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return packed


def write_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write plain arrays; equal arrays give equal bytes, and any name is allowed (np.savez refuses `file`)."""
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            # Without an explicit timestamp, ZipInfo has 1980's.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                np.save(stream, array, allow_pickle=False)


def read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays in an .npz file.

    Raises:
        UserError: It is no .npz file, or needs pickle.
    """
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as archive:
            return {str(name): archive[name] for name in archive}
    except (zipfile.BadZipFile, ValueError, EOFError, AttributeError) as error:
        raise UserError(f"{file}: not an .npz file of plain arrays ({error})") from None


def unpack_columns(file: Path, names: Sequence[str], packed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the named columns from what `pack_columns` returned.

    Args:
        file: The file that was read, for messages.
        names: Column names.
        packed: Its arrays.

    Raises:
        UserError: A column is missing.
    """
    import numpy as np

    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        if name in packed:
            columns[name] = packed[name]
            continue
        stored = next((name + kind for kind in (_DATA, _VALUES) if name + kind in packed), "")
        if not stored or name + _OFFSETS not in packed:
            raise UserError(f"{file}: no array {name!r}, found {', '.join(packed) or 'none'}")
        offsets = packed[name + _OFFSETS].tolist()
        data = packed[stored] if stored.endswith(_VALUES) else packed[stored].tobytes()
        column = np.empty(len(offsets) - 1, object)
        column[:] = [data[start:end] for start, end in itertools.pairwise(offsets)]
        columns[name] = column
    return columns
