"""NumPy files: .npz with named arrays, .npy with one array or a structured one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, guess_target, select_fields, to_objects
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats import npz
from kfp_mindspore.formats.names import normalize_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_npz(path: Path, request: SourceRequest) -> Source:
    """Read an .npz file with plain arrays; `labels` (or `target`, `label`, `class`) is the target by default.

    Raises:
        UserError: It is no such file, or its arrays do not fit together.
    """
    return _to_source("NPZ", f"{path.name} (NPZ)", npz.read_arrays(path), request)


def read_npy(path: Path, request: SourceRequest) -> Source:
    """Read an .npy file: one array is the field `features`; a structured array has its own fields.

    Raises:
        UserError: It is no such file, or needs pickle.
    """
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path.name}: not an .npy file of a plain array ({error})") from None
    columns = {name: array[name] for name in array.dtype.names} if array.dtype.names else {"features": array}
    return _to_source("NPY", f"{path.name} (NPY)", columns, request)


def _to_source(kind: str, where: str, columns: dict[str, NDArray[Any]], request: SourceRequest) -> Source:
    columns = {normalize_name(name): array for name, array in columns.items()}
    names = select_fields(where, request, list(columns))
    columns = {name: convert_array(f"{where}: {name}", columns[name]) for name in names}
    counts = {name: len(array) for name, array in columns.items()}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        raise UserError(f"{where}: arrays must have the same number of samples, at least 1, got {counts}")
    return Source(kind, where, columns, target=guess_target(list(columns)))


def convert_array(where: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with a column's type: texts as `bytes` objects, times as int64.

    Raises:
        UserError: It has another type, or no samples' axis.
    """
    if not array.ndim:
        raise UserError(f"{where}: must be an array of shape (N, …), got one value")
    if array.dtype.kind in "mM":
        return array.astype("int64")
    if array.dtype.kind in "SU":
        values = [value if isinstance(value, bytes) else value.encode() for value in array.ravel().tolist()]
        return to_objects(values).reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: must hold numbers or texts, its dtype is {array.dtype}")
    return array
