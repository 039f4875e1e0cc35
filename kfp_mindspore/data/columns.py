"""A dataset's feature columns from a source's fields, and missing values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.roles import Roles
from kfp_mindspore.data.sources.base import Source
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import Column
from kfp_mindspore.formats.tensors import BYTES, get_row_type, is_ragged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RULES = ("refuse", "mean", "median", "drop")


@dataclass(frozen=True)
class Features:
    """Feature columns as stored, and the inputs that they become.

    Args:
        columns: The columns.
        arrays: Their values by column, for all samples.
        inputs: Columns by network input, in order.
        conversions: Changed dtypes by column, such as `int64 to int32`.
    """

    columns: tuple[Column, ...]
    arrays: dict[str, NDArray[Any]]
    inputs: Mapping[str, tuple[str, ...]]
    conversions: Mapping[str, str]


def build_features(source: Source, roles: Roles) -> Features:
    """Return the feature columns: one input's fields as they are, several numbers as one float32 matrix.

    An input with numbers and texts has a column `INPUT_numbers` and one column for each text.

    Raises:
        UserError: A field in a stacked input is an array.
    """
    columns: list[Column] = []
    arrays: dict[str, NDArray[Any]] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    conversions: dict[str, str] = {}

    def add(name: str, array: NDArray[Any], fields: tuple[str, ...], input_name: str) -> str:
        name = name if name not in arrays else f"{input_name}_{name}"
        given = array[0].dtype.name if is_ragged(array) else array.dtype.name
        kept = _convert_lists(array) if is_ragged(array) else convert_numbers(array)
        dtype, shape = get_row_type(kept) if is_ragged(kept) else (kept.dtype.name, kept.shape)
        if dtype != given:
            conversions[name] = f"{given} to {dtype}"
        arrays[name] = kept
        dtype = BYTES if dtype == "object" else dtype
        columns.append(Column(name, dtype, shape[1:], fields=() if fields == (name,) else fields))
        return name

    for name, fields in roles.inputs.items():
        if isinstance(fields, str):
            inputs[name] = (add(name, source.columns[fields], (fields,), name),)
            continue
        several = [field for field in fields if source.columns[field].ndim != 1 or is_ragged(source.columns[field])]
        if several:
            array = source.columns[several[0]]
            shape = get_row_type(array)[1] if is_ragged(array) else array.shape
            raise UserError(
                f"{source.where}: input {name!r}: {several[0]!r} must have shape (N,) to be stacked, has {shape}",
                hint=f'Make it an input of its own: inputs={{"{several[0]}": "{several[0]}", …}}',
            )
        numbers = tuple(field for field in fields if source.columns[field].dtype != object)
        texts = [field for field in fields if source.columns[field].dtype == object]
        parts = []
        if numbers:
            stacked = _stack([source.columns[field] for field in numbers])
            parts.append(add(f"{name}_numbers" if texts else name, stacked, numbers, name))
        parts += [add(text, source.columns[text], (text,), name) for text in texts]
        inputs[name] = tuple(parts)
    return Features(tuple(columns), arrays, inputs, conversions)


def convert_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return float64 and float16 as float32, and 64-bit integers as int32 where their values fit."""
    import numpy as np

    if array.dtype in (np.float64, np.float16):
        return array.astype(np.float32)
    if array.dtype in (np.int64, np.uint64, np.uint32) and array.size:
        limits = np.iinfo(np.int32)
        if limits.min <= int(array.min()) and int(array.max()) <= limits.max:
            return array.astype(np.int32)
        return array.astype(np.int64) if array.dtype == np.uint32 else array
    return array


def _convert_lists(array: NDArray[Any]) -> NDArray[Any]:
    """Return lists with one dtype, converted as `convert_numbers` does."""
    import numpy as np

    dtype = convert_numbers(np.concatenate(array.tolist())).dtype
    rows = np.empty(len(array), object)
    rows[:] = [row.astype(dtype, copy=False) for row in array]
    return rows


def check_rule(rule: str | float) -> None:
    """Raise ValidationError unless a rule for missing values is in `RULES` or a number."""
    if rule not in RULES and isinstance(rule, str | bool):
        raise ValidationError(
            [f"missing: must be {', '.join(RULES)} or a number, got {rule!r}"], subject="load_dataset"
        )


def check_missing(source: Source, roles: Roles, rule: str | float, classes: Sequence[str] = ()) -> dict[str, int]:
    """Return how many values are missing by field, for the fields that miss any.

    Args:
        source: The source.
        roles: Its fields' roles.
        rule: The rule for missing values.
        classes: Fields whose blank texts are missing values.

    Raises:
        UserError: There is no rule for them; a target, weight, time or group can only be dropped.
    """
    needed = [name for name in (*roles.target, roles.weight, roles.order) if name]
    missing = {name: count for name in roles.list_fields() if (count := _count_missing(source, name, classes))}
    refused = {
        name: count for name, count in missing.items() if rule == "refuse" or (rule != "drop" and name in needed)
    }
    if refused:
        listed = ", ".join(
            f"{name} ({count}, first in row {int(_find_missing(source, name, classes).argmax()) + 1})"
            for name, count in list(refused.items())[:10]
        )
        more = f" and {len(refused) - 10} more fields" if len(refused) > 10 else ""
        raise UserError(
            f"{source.where}: missing values in {listed}{more}, in {len(source)} samples",
            hint="Fill them in, or drop the samples: --missing drop (missing='drop')."
            if rule != "refuse" or all(name in needed or source.columns[name].dtype == object for name in refused)
            else "Give a rule: --missing mean, median, drop or a number (missing=…).",
        )
    return missing


def check_infinite(source: Source, roles: Roles, rule: str) -> dict[str, int]:
    """Return how many infinite numbers each feature field has that has any; by the rule `missing` they become NaN.

    Raises:
        UserError: The rule refuses them; the message has the field and the row.
    """
    import numpy as np

    found: dict[str, int] = {}
    for name in roles.list_features():
        array = source.columns[name]
        if is_ragged(array) or array.dtype.kind != "f":
            continue
        infinite = np.isinf(array)
        if not (count := int(infinite.sum())):
            continue
        found[name] = count
        if rule == "refuse":
            row = int(np.argwhere(infinite)[0][0]) + 1
            raise UserError(
                f"{source.where}: {name}: must hold finite numbers, got {array[infinite][0]:g} in row {row}, "
                f"{count} in all",
                hint="Correct the cells, leave the field out (--features NAME,…), or count them as missing: "
                "--infinite missing with a rule such as --missing median or drop.",
            )
        source.columns[name] = np.where(infinite, array.dtype.type(np.nan), array)
        source.missing[name] = source.missing.get(name, int(np.isnan(array).sum())) + count
    return found


def drop_incomplete(
    source: Source, fields: Iterable[str], classes: Sequence[str] = (), *, is_block: bool = False
) -> int:
    """Remove the samples that have no value in one of the fields, and return how many.

    Args:
        source: The source, changed in place.
        fields: The fields with missing values.
        classes: Fields whose blank texts are missing values.
        is_block: Whether the samples are a part of the source, of which none may be left.

    Raises:
        UserError: No sample of the source is left.
    """
    import numpy as np

    complete = np.ones(len(source), bool)
    for name in fields:
        complete &= ~_find_missing(source, name, classes)
    if not complete.any() and not is_block:
        raise UserError(f"{source.where}: each sample has a missing value in {', '.join(fields)}")
    for name in source.columns:
        source.columns[name] = source.columns[name][complete]
    if source.splits is not None:
        source.splits = source.splits[complete]
    return int((~complete).sum())


def fill_missing(
    columns: tuple[Column, ...], splits: Mapping[str, dict[str, NDArray[Any]]], rule: str | float
) -> dict[str, list[float]]:
    """Replace NaN in place, by the training split's mean or median, or a number.

    Returns:
        The values that were filled in, by column: one for each field.
    """
    import numpy as np

    filled: dict[str, list[float]] = {}
    for column in columns:
        train = splits["train"][column.name]
        if train.dtype.kind != "f" or len(column.shape) > 1:
            continue
        values = []
        for index in range(math.prod(column.shape)):
            known = train.reshape(len(train), -1)[:, index]
            if isinstance(rule, str):
                known = known[~np.isnan(known)]
                reduce = np.median if rule == "median" else np.mean
                value = float(reduce(known, axis=0)) if len(known) else 0.0
            else:
                value = float(rule)
            values.append(value)
            for arrays in splits.values():
                array = arrays[column.name].reshape(len(arrays[column.name]), -1)[:, index]
                array[np.isnan(array)] = value
        filled[column.name] = values
    return filled


def _find_missing(source: Source, name: str, classes: Sequence[str]) -> NDArray[np.bool_]:
    """Return which samples have no value in a field."""
    import numpy as np

    array = source.columns[name]
    if is_ragged(array):
        return np.array([not len(row) for row in array], bool)
    if array.dtype == object:
        texts = array.reshape(len(array), -1)
        if _has_classes(source, name, classes):
            return np.array([not text.strip() if isinstance(text, bytes) else text is None for text in array], bool)
        return np.asarray((texts == b"").any(axis=1))
    if array.dtype.kind == "f":
        return np.asarray(np.isnan(array.reshape(len(array), -1)).any(axis=1))
    # A missing time.
    return np.asarray(array == np.iinfo(array.dtype).min) if array.dtype.kind in "iu" else np.zeros(len(array), bool)


def _has_classes(source: Source, name: str, classes: Sequence[str]) -> bool:
    """Return whether a field holds class names, which have visible characters."""
    array = source.columns[name]
    return name in classes and array.dtype == object and array.ndim == 1 and not is_ragged(array)


def _count_missing(source: Source, name: str, classes: Sequence[str]) -> int:
    import numpy as np

    array = source.columns[name]
    if _has_classes(source, name, classes):
        return int(_find_missing(source, name, classes).sum())
    if name in source.missing:
        return source.missing[name]
    return int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0


def _stack(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return columns as one float32 matrix, without a copy when they are neighbours in one matrix already."""
    import numpy as np

    base = arrays[0].base
    if isinstance(base, np.ndarray) and base.ndim == 2 and all(array.base is base for array in arrays):
        places = [(array.ctypes.data - base.ctypes.data) // base.itemsize for array in arrays]
        if base.dtype == np.float32 and places == list(range(places[0], places[0] + len(places))):
            return base[:, places[0] : places[0] + len(places)]
    return np.stack([array.astype(np.float32, copy=False) for array in arrays], axis=1)
