"""Columns with lists: arrays when all have one length, otherwise arrays of arrays for the columns that are padded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import SourceRequest
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NO_LIST = "must be a list of numbers such as [1, 2, 3]"


def get_limit(request: SourceRequest, name: str, *, exact: bool) -> int | None:
    """Return the most values in a column's lists, 0 for any number; None for a column that is not padded."""
    return request.lists.get(name, None if exact else request.lists.get(""))


def read_lists(where: str, column: Any, limit: int | None) -> NDArray[Any]:
    """Return an Arrow column with lists of numbers.

    Args:
        where: File and column, for messages.
        column: The chunked array; a missing list becomes an empty one.
        limit: As `get_limit` returns it.

    Returns:
        An array with shape (N, L, …), or with a limit an array of N arrays with shape (L, …).

    Raises:
        UserError: A list holds other values than numbers, or has another length; the message names the row.
    """
    import pyarrow
    from pyarrow import compute, types

    array = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
    lengths = compute.fill_null(compute.list_value_length(array), 0).to_numpy()
    values = array.flatten()
    inner: list[int] = []
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        sizes = compute.fill_null(compute.list_value_length(values), 0).to_numpy()
        if len(sizes) and (sizes != sizes[0]).any():
            place = int((sizes != sizes[0]).argmax())
            raise UserError(
                f"{where}: row {_find_row(lengths, inner, place)}: the inner lists must have {sizes[0]} numbers, as "
                f"the first has, got {sizes[place]}"
            )
        inner.append(int(sizes[0]) if len(sizes) else 0)
        values = values.flatten()
    return _shape_lists(where, values, lengths, inner, limit)


def parse_lists(where: str, texts: NDArray[Any], limit: int) -> NDArray[Any]:
    """Return lists that a CSV file has as texts, such as "[1, 2, 3]", as `read_lists` does.

    Raises:
        UserError: A text is no list of numbers; the message names the row.
    """
    import pyarrow

    rows = []
    for index, text in enumerate(texts):
        try:
            value = json.loads(text) if text else None
        except ValueError:
            value = ""
        if value is not None and not isinstance(value, list):
            raise UserError(f"{where}: row {index + 1}: {_NO_LIST}, got {text.decode(errors='replace')!r:.60}")
        rows.append(value)
    try:
        column = pyarrow.chunked_array([rows])
    except pyarrow.ArrowException as error:
        raise UserError(f"{where}: {_NO_LIST} in each row ({error})") from None
    if pyarrow.types.is_null(column.type):
        column = column.cast(pyarrow.list_(pyarrow.float32()))
    return read_lists(where, column, limit)


def _shape_lists(
    where: str, values: Any, lengths: NDArray[np.int64], inner: list[int], limit: int | None
) -> NDArray[Any]:
    import numpy as np
    from pyarrow import types

    kind = values.type
    if types.is_null(kind):
        values = values.cast("float32")
    elif types.is_decimal(kind):
        values = values.cast("float64")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise UserError(
            f"{where}: lists must hold numbers, got {kind}",
            hint="Write one text a row in place of a list of texts, or leave the column out (--features).",
        )
    flat = values.to_numpy(zero_copy_only=False)
    missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if missing.any():
        row = _find_row(lengths, inner, int(missing.argmax()))
        raise UserError(f"{where}: row {row}: the list has a missing value", hint="Remove the value or the row.")
    flat = flat.reshape(-1, *inner)
    if limit is None:
        if len(lengths) and (lengths != lengths[0]).any():
            _refuse_unequal(where, lengths)
        return np.ascontiguousarray(flat.reshape(len(lengths), -1, *inner))
    if limit and (longer := lengths > limit).any():
        row = int(longer.argmax())
        raise UserError(
            f"{where}: row {row + 1}: the list has {lengths[row]} values, more than Pad's length {limit}; the longest "
            f"has {lengths.max()}",
            hint="Give Pad a greater length, or cut longer lists: Pad(…, truncate=True).",
        )
    rows = np.empty(len(lengths), object)
    rows[:] = np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
    return rows


def _refuse_unequal(where: str, lengths: NDArray[np.int64]) -> None:
    other = int((lengths != lengths[0]).argmax())
    name, longest = where.rpartition(": ")[2], lengths.max()
    declared = f'[{{"type": "Pad", "length": {longest}, "column": "{name}"}}]'
    raise UserError(
        f"{where}: lists must have equal lengths, row 1 has {lengths[0]} values, row {other + 1} has {lengths[other]} "
        f"({lengths.min()} to {longest} in {len(lengths)} rows)",
        hint=f'Pad them: preprocessing=[Pad({longest}, column="{name}"), …], or --preprocessing {declared!r}; or leave '
        "the column out (--features).",
    )


def _find_row(lengths: NDArray[np.int64], inner: list[int], place: int) -> int:
    """Return the row, from 1, with a place in the flattened values."""
    import math

    import numpy as np

    return int(np.searchsorted(np.cumsum(lengths), place // max(math.prod(inner), 1), "right")) + 1
