"""A step for lists with unequal lengths: padding to one length, with the lengths or a mask beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec, is_ragged
from kfp_mindspore.transform.base import Arrays, TransformInputError
from kfp_mindspore.transform.pipeline import Step

_SIDES = ("right", "left")
_EXAMPLE = 8


class Pad(Step):
    """Lists of numbers with unequal lengths to an array with shape (N, length, …).

    A row is a list of L numbers, or of L lists with F numbers each; the padded column keeps their dtype.

    Args:
        length: Values per row after padding.
        value: The padding's value.
        side: Side on which a shorter list is padded and a longer one is cut, `right` or `left`.
        truncate: Whether a list longer than `length` is cut; such a list is refused by default.
        lengths: Name of a further network input with the value count of each list, int32 with shape (N,), at most
            `length`; empty for none.
        mask: Name of a further network input with 1 for a value and 0 for padding, float32 with shape (N, length);
            empty for none.
        column: The input; may be left out when there is only one.
    """

    def __init__(
        self,
        length: int,
        value: float = 0,
        *,
        side: str = "right",
        truncate: bool = False,
        lengths: str = "",
        mask: str = "",
        column: str = "",
    ) -> None:
        super().__init__(column)
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise UserError(f"Pad: length: must be a number of at least 1, got {length!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise UserError(f"Pad: value: must be a finite number, got {value!r}")
        if side not in _SIDES:
            raise UserError(f"Pad: side: must be {' or '.join(_SIDES)}, got {side!r}")
        if not isinstance(truncate, bool):
            raise UserError(f"Pad: truncate: must be true or false, got {truncate!r}")
        for option, name in (("lengths", lengths), ("mask", mask)):
            if not isinstance(name, str):
                raise UserError(f"Pad: {option}: must be the name of an input, got {name!r}")
        given = [name for name in (column, lengths, mask) if name]
        if len(set(given)) < len(given):
            raise UserError(f"Pad: column, lengths and mask: must be different, got {', '.join(map(repr, given))}")
        self.length = length
        self.value = value
        self.side = side
        self.truncate = truncate
        self.lengths = lengths
        self.mask = mask

    def fit(self, arrays: Arrays) -> Pad:
        """Return the step, if the column holds lists and their dtype can represent `value`.

        Raises:
            UserError: The message names the column.
        """
        column = self.get_column(arrays)
        rows = self._list_rows(arrays[column], f"Pad: {column!r}", UserError)
        if len(rows) and rows[0].dtype.kind not in "f" and self.value != int(self.value):
            raise UserError(f"Pad: value: must be an integer, as the lists in {column!r} are, got {self.value}")
        return self

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the padded batch with shape (N, length, …)."""
        rows = self._list_rows(batch, "input", TransformInputError)
        self._count_values(rows, "input")
        return self._pad(rows)

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with the padded column, followed by `lengths` and `mask`."""
        column = self.get_column(arrays)
        rows = self._list_rows(arrays[column], f"input {column!r}", TransformInputError)
        counts = self._count_values(rows, f"input {column!r}")
        result: Arrays = {}
        for name, array in arrays.items():
            if name in (self.lengths, self.mask):
                raise UserError(f"Pad: lengths and mask: there is a column {name!r} already")
            result[name] = self._pad(rows) if name == column else array
            if name == column and self.lengths:
                result[self.lengths] = counts
            if name == column and self.mask:
                places = np.arange(self.length)
                places = places if self.side == "right" else places[::-1]
                result[self.mask] = (places < counts[:, np.newaxis]).astype(np.float32)
        return result

    def infer_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs with a free length, without `lengths` and `mask`.

        Raises:
            UserError: The graph has other inputs than this step gives.
        """
        expected = {self.lengths: ("int32", ()), self.mask: ("float32", (self.length,))}
        found = {spec.name: spec for spec in specs}
        for name, (dtype, shape) in expected.items():
            if name and name not in found:
                raise UserError(f"Pad: gives {name!r}, but the inputs are {', '.join(map(repr, found))}")
            if name and not _fits(found[name], dtype, shape):
                raise UserError(f"Pad: gives {name!r} as {dtype} of {(-1, *shape)}, but it must be {found[name]}")
        kept = [spec for spec in specs if spec.name not in expected]
        return self.replace_spec(kept, self.infer_input)

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a free length."""
        if len(spec.shape) < 2 or spec.shape[1] not in (-1, self.length):
            raise UserError(f"Pad: gives {self.length} values, but {spec.name!r} must have shape {spec.shape}")
        return dataclasses.replace(spec, shape=(spec.shape[0], -1, *spec.shape[2:]))

    def make_example(self, spec: TensorSpec) -> NDArray[Any] | None:
        """Return two rows with zeros, not longer than `length`."""
        if spec.dtype == BYTES or -1 in spec.shape[2:]:
            return None
        return np.zeros((2, min(_EXAMPLE, self.length), *spec.shape[2:]), spec.dtype)

    def _list_rows(
        self, batch: NDArray[Any], where: str, error: type[UserError]
    ) -> Sequence[NDArray[Any]] | NDArray[Any]:
        if is_ragged(batch):
            return batch
        if batch.dtype.kind not in "biuf" or batch.ndim < 2:
            found = "texts" if batch.dtype.kind in "OSU" else f"{batch.dtype} of {batch.shape}"
            raise error(f"{where}: must hold lists of numbers, got {found}")
        return batch

    def _count_values(self, rows: Sequence[NDArray[Any]] | NDArray[Any], where: str) -> NDArray[np.int32]:
        counts = np.fromiter(map(len, rows), np.int32, len(rows))
        if not self.truncate and (longer := counts > self.length).any():
            row = int(np.argmax(longer))
            raise TransformInputError(f"{where}: row {row}: has {counts[row]} values, expected at most {self.length}")
        return np.minimum(counts, self.length, dtype=np.int32)

    def _pad(self, rows: Sequence[NDArray[Any]] | NDArray[Any]) -> NDArray[Any]:
        if not len(rows):
            return np.zeros((0, self.length), np.float32)
        padded = np.full((len(rows), self.length, *rows[0].shape[1:]), self.value, rows[0].dtype)
        for target, row in zip(padded, rows, strict=True):
            kept = row[: self.length] if self.side == "right" else row[-self.length :]
            start = 0 if self.side == "right" else self.length - len(kept)
            target[start : start + len(kept)] = kept
        return padded


def _fits(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> bool:
    inner = spec.shape[1:]
    return (
        spec.dtype == dtype
        and len(inner) == len(shape)
        and all(size in (-1, wanted) for size, wanted in zip(inner, shape, strict=True))
    )
