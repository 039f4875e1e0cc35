"""Rows by column names to a model's inputs: the one conversion of server, client, files and batch predictions.

Columns are converted as a whole. A missing value is None or NaN; it follows the dataset's rule. An
empty text is a value, as in CSV files.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import suggest
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.formats.rows import RowInput, RowLayout
from kfp_mindspore.formats.tensors import BYTES
from kfp_mindspore.transform.base import Arrays, TransformInputError, fill_objects

Columns = Mapping[str, Any]
_NUMBERS = frozenset({int, float, bool})
_LISTED = 20
_LONGEST = 60
_MAX_DEPTH = 32


def name_row(index: int) -> str:
    """Return a row's place for messages."""
    return f"row {index}"


class RowPacker:
    """Converts rows, or columns, to a model's inputs. Several threads may share it.

    Args:
        layout: The columns and the inputs.
        finite: Whether infinities are refused.
    """

    def __init__(self, layout: RowLayout, *, finite: bool = True) -> None:
        self.layout = layout
        self._finite = finite
        self._known = frozenset((*layout.columns, *layout.target, *layout.others))
        self._is_ascii = all(map(str.isascii, self._known))
        self._own = frozenset(one.name for one in layout.inputs).difference(layout.columns)
        self._getters = [
            operator.itemgetter(*one.columns) if len(one.columns) > 1 else _wrap(one.columns[0])
            for one in layout.inputs
        ]

    def accepts(self, names: Iterable[str]) -> bool:
        """Return whether names are columns, rather than the model's own inputs."""
        return self._own.isdisjoint(map(normalize_name, names))

    def pack_rows(self, rows: Sequence[Any], name: Callable[[int], str] = name_row) -> Arrays:
        """Return the inputs for rows, each an object with the columns' values.

        Args:
            rows: The rows, at least one.
            name: Returns a row's place for messages.

        Raises:
            TransformInputError: The message names row, column, what was found and what is expected.
        """
        rows = self._normalize_rows(rows)
        if self.layout.extra == "refuse":
            self._refuse_extra(rows, name)
        packed = {}
        for one, get in zip(self.layout.inputs, self._getters, strict=True):
            try:
                values = list(map(get, rows))
            except (KeyError, TypeError, IndexError):
                self._refuse_row(rows, one, name)
            if one.stacked:
                packed[one.name] = self._stack_rows(one, values, name)
            else:
                packed[one.name] = self._convert(one, values if len(one.columns) > 1 else [v for (v,) in values], name)
        return packed

    def transpose(self, rows: Sequence[Any], name: Callable[[int], str] = name_row) -> dict[str, list[Any]]:
        """Return the feature columns of rows, each an object with the columns' values.

        Raises:
            TransformInputError: A row is no object, or lacks a column.
        """
        rows = self._normalize_rows(rows)
        if self.layout.extra == "refuse":
            self._refuse_extra(rows, name)
        columns: dict[str, list[Any]] = {}
        for one, get in zip(self.layout.inputs, self._getters, strict=True):
            try:
                columns.update(zip(one.columns, map(list, zip(*map(get, rows), strict=True)), strict=True))
            except (KeyError, TypeError, IndexError):
                self._refuse_row(rows, one, name)
        return columns

    def pack_columns(self, columns: Columns, name: Callable[[int], str] = name_row) -> Arrays:
        """Return the inputs for columns: arrays or lists with equal lengths.

        Raises:
            TransformInputError: As `pack_rows`.
        """
        columns = {normalize_name(column): values for column, values in columns.items()}
        self.check_columns(columns)
        lengths = {len(columns[column]) for column in self.layout.columns}
        if len(lengths) != 1 or lengths == {0}:
            raise TransformInputError(f"columns: must have the same number of rows, at least 1, got {sorted(lengths)}")
        packed = {}
        for one in self.layout.inputs:
            if one.stacked:
                array = np.empty((len(columns[one.columns[0]]), len(one.columns)), one.dtype)
                for index, column in enumerate(one.columns):
                    array[:, index] = _to_numbers(columns[column], column, np.dtype(one.dtype), name)
                packed[one.name] = self._complete(one, array, name)
            else:
                packed[one.name] = self._convert(one, columns[one.columns[0]], name)
        return packed

    def check_columns(self, found: Iterable[str]) -> None:
        """Refuse missing columns and, by the layout's `extra`, unknown ones.

        Raises:
            TransformInputError: The message names the column and the found and expected ones.
        """
        names = list(map(normalize_name, found))
        for column in self.layout.columns:
            if column not in names:
                raise TransformInputError(f"column {column!r}: missing, got {_describe_found(column, names)}")
        if self.layout.extra == "refuse":
            for column in names:
                if column not in self._known:
                    raise TransformInputError(f"column {column!r:.80}: unknown, expected {_join(self.layout.columns)}")

    def list_incomplete(self, columns: Columns) -> NDArray[np.bool_]:
        """Return which rows miss a value in a feature column."""
        found = np.zeros(len(columns[self.layout.columns[0]]), bool)
        for column in self.layout.columns:
            array = columns[column]
            if isinstance(array, np.ndarray) and array.dtype.kind == "f":
                found |= np.isnan(array.reshape(len(array), -1)).any(axis=1)
            elif not isinstance(array, np.ndarray) or array.dtype == object:
                found |= np.fromiter(map(_is_missing, array), bool, len(array))
        return found

    def unpack(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns in inputs, the reverse of `pack_columns`."""
        return unpack_columns([(one.name, one.columns, one.stacked) for one in self.layout.inputs], inputs)

    def _normalize_rows(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return rows with their columns' names in NFC; as they are where no column needs it."""
        if self._is_ascii:
            return rows
        return [
            {normalize_name(key) if isinstance(key, str) else key: value for key, value in row.items()}
            if isinstance(row, Mapping)
            else row
            for row in rows
        ]

    def _stack_rows(self, one: RowInput, values: list[tuple[Any, ...]], name: Callable[[int], str]) -> NDArray[Any]:
        dtype = np.dtype(one.dtype)
        if set(map(type, itertools.chain.from_iterable(values))) <= _NUMBERS:
            try:
                with np.errstate(over="ignore"):
                    return self._check_finite(one, np.array(values, dtype), name)
            except OverflowError:
                pass
        columns = zip(one.columns, zip(*values, strict=True), strict=True)
        arrays = [_to_numbers(list(found), column, dtype, name) for column, found in columns]
        return self._complete(one, np.stack(arrays, axis=1), name)

    def _convert(self, one: RowInput, values: Any, name: Callable[[int], str]) -> NDArray[Any]:
        """Return the values of an input with one column."""
        (column,) = one.columns
        if one.dtype == BYTES:
            texts = _to_texts(values, column, name)
            found = texts.ravel().tolist()
            if None in found:
                if self.layout.missing in ("refuse", "drop"):
                    self._refuse_missing(column, found.index(None) * len(texts) // len(found), name)
                texts = fill_objects([text or b"" for text in found]).reshape(texts.shape)
            return texts
        if one.is_list:
            return self._to_lists(one, values, name)
        dtype = np.dtype(one.dtype)
        if one.shape:
            return self._complete(one, _to_nested(values, column, dtype, name), name)
        if dtype.kind == "f":
            return self._complete(one, _to_numbers(values, column, dtype, name), name)
        return self._to_integers(one, _to_numbers(values, column, None, name), name)

    def _to_lists(self, one: RowInput, values: Any, name: Callable[[int], str]) -> NDArray[Any]:
        """Return lists with unequal lengths as an array of arrays."""
        (column,), dtype = one.columns, np.dtype(one.dtype)
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim != 1 + len(one.shape):
            raise TransformInputError(f"column {column!r}: must have a list in each row, got shape {values.shape}")
        rows = fill_objects([self._to_list(one, value, index, name) for index, value in enumerate(values)])
        for index, row in enumerate(rows):
            if one.longest and len(row) > one.longest:
                raise TransformInputError(
                    f"{name(index)}: column {column!r}: has {len(row)} values, expected at most {one.longest}"
                )
            if row.shape[1:] != one.shape[1:]:
                raise TransformInputError(
                    f"{name(index)}: column {column!r}: must be lists with {one.shape[1:]} numbers, got {row.shape[1:]}"
                )
            if self._finite and dtype.kind == "f" and not np.isfinite(row).all():
                raise TransformInputError(f"{name(index)}: column {column!r}: must be finite numbers")
        return rows

    def _to_list(self, one: RowInput, value: Any, index: int, name: Callable[[int], str]) -> NDArray[Any]:
        (column,) = one.columns
        if _is_missing(value):
            if self.layout.missing in ("refuse", "drop"):
                self._refuse_missing(column, index, name)
            value = []
        return to_row(one, value, name(index))

    def _to_integers(self, one: RowInput, array: NDArray[Any], name: Callable[[int], str]) -> NDArray[Any]:
        """Return whole numbers in the input's dtype; a table's column with missing values has floats."""
        (column,), dtype = one.columns, np.dtype(one.dtype)
        if array.dtype.kind == "f":
            if (missing := np.isnan(array)).any():
                self._refuse_missing(column, int(np.argmax(missing)), name)
            whole = array == np.floor(array)
        else:
            whole = np.ones(len(array), bool)
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        with np.errstate(invalid="ignore"):
            fits = whole & (array >= least) & (array <= most)
        if not fits.all():
            index = int(np.argmin(fits))
            expected = "a boolean" if dtype.kind == "b" else f"an integer ({dtype.name})"
            raise TransformInputError(f"{name(index)}: column {column!r}: must be {expected}, got {array[index]}")
        return array.astype(dtype)

    def _complete(self, one: RowInput, array: NDArray[Any], name: Callable[[int], str]) -> NDArray[Any]:
        """Replace NaN by the layout's numbers in place, or refuse it."""
        if array.dtype.kind == "f" and (missing := np.isnan(array)).any():
            if not one.fill:
                index = np.argwhere(missing)[0]
                self._refuse_missing(one.columns[index[1] if one.stacked else 0], int(index[0]), name)
            flat, mask = array.reshape(len(array), -1), missing.reshape(len(array), -1)
            for index, value in enumerate(one.fill):
                flat[mask[:, index], index] = value
        return self._check_finite(one, array, name)

    def _check_finite(self, one: RowInput, array: NDArray[Any], name: Callable[[int], str]) -> NDArray[Any]:
        if array.dtype.kind != "f":
            return array
        finite = np.isfinite(array)
        if finite.all():
            return array
        if np.isnan(array).any():
            return self._complete(one, array, name)
        if self._finite:
            index = np.argwhere(~finite)[0]
            column = one.columns[index[1] if one.stacked else 0]
            raise TransformInputError(
                f"{name(int(index[0]))}: column {column!r}: must be a finite number, got infinity or a number too "
                f"large for {one.dtype}"
            )
        return array

    def _refuse_missing(self, column: str, index: int, name: Callable[[int], str]) -> NoReturn:
        rule = self.layout.missing
        reason = "has no value for it" if rule not in ("refuse", "drop") else "fills no values"
        raise TransformInputError(
            f"{name(index)}: column {column!r}: the value is missing, and the dataset's rule missing={rule} {reason}"
        )

    def _refuse_row(self, rows: Sequence[Any], one: RowInput, name: Callable[[int], str]) -> NoReturn:
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise TransformInputError(
                    f"{name(index)}: must be an object with the columns {_join(self.layout.columns)}, got "
                    f"{type(row).__name__}"
                )
            for column in one.columns:
                if column not in row:
                    raise TransformInputError(
                        f"{name(index)}: column {column!r}: missing, got {_describe_found(column, row)}"
                    )
        raise AssertionError("every row has every column")

    def _refuse_extra(self, rows: Sequence[Any], name: Callable[[int], str]) -> None:
        for index, row in enumerate(rows):
            if isinstance(row, Mapping) and not self._known.issuperset(row):
                column = next(column for column in row if column not in self._known)
                raise TransformInputError(
                    f"{name(index)}: column {column!r:.80}: unknown, expected {_join(self.layout.columns)}"
                )


def unpack_columns(
    parts: Iterable[tuple[str, tuple[str, ...], bool]], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return columns from inputs, each given by its name, its columns and whether these are stacked."""
    columns: dict[str, NDArray[Any]] = {}
    for name, fields, stacked in parts:
        columns |= (
            {field: inputs[name][:, index] for index, field in enumerate(fields)}
            if stacked
            else {fields[0]: inputs[name]}
        )
    return columns


def to_row(one: RowInput, value: Any, where: str) -> NDArray[Any]:
    """Return one row's list in the input's dtype, or an array with such rows.

    Args:
        one: The input, whose rows are lists.
        value: A list, an array, or a list as JSON text, as V2 and CSV files have it.
        where: The row's place for messages.

    Raises:
        TransformInputError: It is no list, or holds other values than the dtype's.
    """
    (column,), dtype, found = one.columns, np.dtype(one.dtype), value
    if isinstance(value, str | bytes):
        with contextlib.suppress(ValueError):
            found = json.loads(value)
    kind = {"f": "numbers", "b": "booleans"}.get(dtype.kind, "integers")
    if isinstance(found, np.ndarray) and found.dtype.kind in "biuf":
        whole = dtype.kind in "iu" and found.dtype.kind in "iu"
        if np.can_cast(found.dtype, dtype, "same_kind") and not (whole and _exceeds(found, dtype)):
            with np.errstate(over="ignore"):
                return found.astype(dtype, copy=False)
        found = found.tolist()
    if isinstance(found, tuple | np.ndarray):
        found = list(found)
    if not isinstance(found, list):
        raise TransformInputError(f"{where}: column {column!r}: must be a list of {kind}, got {_show(value)}")
    leaves = found
    for _ in one.shape[1:]:
        leaves = list(itertools.chain.from_iterable(row if isinstance(row, list) else [row] for row in leaves))
    allowed = {"f": _NUMBERS, "b": frozenset({bool})}.get(dtype.kind, frozenset({int, bool}))
    if not allowed.issuperset(map(type, leaves)):
        wrong = next(leaf for leaf in leaves if type(leaf) not in allowed)
        raise TransformInputError(f"{where}: column {column!r}: must be a list of {kind}, holds {_show(wrong)}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(found, np.int64 if dtype.kind in "iu" else dtype)
    except (ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype == object or (dtype.kind in "iu" and _exceeds(array, dtype)):
        inner = ", with inner lists of equal lengths" if one.shape[1:] else ""
        raise TransformInputError(f"{where}: column {column!r}: must be a list of {kind} ({dtype.name}){inner}")
    return array.astype(dtype) if found else np.empty((0, *one.shape[1:]), dtype)


def _exceeds(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return bool(array.size and (array.min() < limits.min or array.max() > limits.max))


def _wrap(column: str) -> Callable[[Mapping[str, Any]], tuple[Any]]:
    return lambda row: (row[column],)


def _to_numbers(values: Any, column: str, dtype: np.dtype[Any] | None, name: Callable[[int], str]) -> NDArray[Any]:
    """Return numbers as an array with shape (N,), missing ones as NaN; None for the values' own dtype."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        if values.ndim != 1:
            raise TransformInputError(f"column {column!r}: must have one number a row, got shape {values.shape}")
        with np.errstate(over="ignore"):
            return values if dtype is None else values.astype(dtype)
    given = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if not set(map(type, given)) <= _NUMBERS:
        given = [np.nan if value is None else value for value in given]
        for index, value in enumerate(given):
            if not isinstance(value, (bool, int, float, np.number, np.bool_)):
                raise TransformInputError(f"{name(index)}: column {column!r}: must be a number, got {_show(value)}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(given, dtype)
    except OverflowError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise TransformInputError(f"column {column!r}: must be numbers of at most 64 bits")
    return array


def _to_texts(values: Any, column: str, name: Callable[[int], str]) -> NDArray[Any]:
    """Return texts as an array of `bytes` objects, missing ones None."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "OSU":
            raise TransformInputError(f"{name(0)}: column {column!r}: must be a text, got {_show(values.flat[0])}")
        if values.ndim > 1:
            rows = _to_texts(values.ravel(), column, lambda index: name(index // (values.size // len(values))))
            return rows.reshape(values.shape)
        values = values.tolist()
    if set(map(type, values)) == {str}:
        return fill_objects([value.encode(errors="surrogatepass") for value in values])
    return fill_objects([_to_bytes(value, column, index, name) for index, value in enumerate(values)])


def _to_bytes(value: Any, column: str, index: int, name: Callable[[int], str]) -> bytes | None:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, bytes):
        return value
    if _is_missing(value):
        return None
    if isinstance(value, Mapping) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise TransformInputError(f"{name(index)}: column {column!r}: b64 is not valid base64") from None
    raise TransformInputError(f"{name(index)}: column {column!r}: must be a text, got {_show(value)}")


def _to_nested(values: Any, column: str, dtype: np.dtype[Any], name: Callable[[int], str]) -> NDArray[Any]:
    """Return lists of numbers as an array; the model validates its shape."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(dtype)
    given = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    leaves, depth = given, 0
    # np.array on unchecked values would allocate the longest text's length for every element.
    while set(map(type, leaves)) == {list} and depth < _MAX_DEPTH:
        leaves, depth = list(itertools.chain.from_iterable(leaves)), depth + 1
    kinds = {int, bool} if dtype.kind in "iu" else {bool} if dtype.kind == "b" else _NUMBERS
    for index, value in enumerate(given):
        if not isinstance(value, list):
            raise TransformInputError(f"{name(index)}: column {column!r}: must be a list, got {_show(value)}")
    if not set(map(type, leaves)) <= kinds:
        raise TransformInputError(f"column {column!r}: must be lists of {dtype.name} with equal lengths")
    try:
        return np.array(given, dtype)
    except (ValueError, OverflowError):
        raise TransformInputError(f"column {column!r}: must be lists of {dtype.name} with equal lengths") from None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _show(value: Any) -> str:
    if _is_missing(value):
        return "no value"
    kind = {str: "the text ", bytes: "the text ", bool: "the boolean ", list: "a list ", dict: "an object "}
    return f"{kind.get(type(value), '')}{value!r:.60}"


def _describe_found(column: str, names: Collection[str]) -> str:
    # Similarity is computed for a few short names only: clients choose them.
    few = [str(name) for name in itertools.islice(names, _LISTED) if len(str(name)) <= _LONGEST]
    return _join(names) + suggest(column, few, listed=False)


def _join(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(f"{name!r:.{_LONGEST}}" for name in names[:_LISTED]) or "none") + more
