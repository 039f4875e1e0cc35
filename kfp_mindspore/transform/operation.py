"""A transform over the rows of a dataset, as `mindspore.dataset` calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Operation:
    """Calls a function over batches of named arrays with one row, or batch, of unnamed ones.

    Args:
        function: From batches by name to batches by name.
        columns: The names of what `__call__` is given.
        batched: Whether `__call__` is given batches, not rows.
    """

    function: Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]
    columns: tuple[str, ...]
    batched: bool = False

    def __call__(self, *values: NDArray[Any]) -> Any:
        """Return one array, or a tuple of them when the function gives several."""
        if len(values) != len(self.columns):
            names = ", ".join(map(repr, self.columns)) or "none"
            raise ValueError(f"columns: {len(values)} are given, as_operation names {len(self.columns)}: {names}")
        batches = {
            name: _unify_texts(np.asarray(value)) if self.batched else make_batch(value)
            for name, value in zip(self.columns, values, strict=True)
        }
        results = tuple(self.function(batches).values())
        if not self.batched:
            results = tuple(take_row(array) for array in results)
        return results[0] if len(results) == 1 else results


def make_batch(value: Any) -> NDArray[Any]:
    """Return a batch of one row; a text or bytes as an array of one `bytes` object."""
    if isinstance(value, bytes | str):
        return fill_objects([value.encode() if isinstance(value, str) else bytes(value)])
    return _unify_texts(np.asarray(value)[np.newaxis])


def take_row(batch: NDArray[Any]) -> NDArray[Any]:
    """Return the only row of a batch of one; bytes as an array of fixed width, which a dataset can hold."""
    row = batch[0]
    return np.asarray(row)


def fill_objects(values: list[Any]) -> NDArray[Any]:
    """Return a one-dimensional array of objects, whatever they are (NumPy would take arrays and lists apart)."""
    array: NDArray[Any] = np.empty(len(values), object)
    array[:] = values
    return array


def _unify_texts(batch: NDArray[Any]) -> NDArray[Any]:
    if batch.dtype.kind not in "SU":
        return batch
    texts = [text.encode() if isinstance(text, str) else bytes(text) for text in batch.ravel().tolist()]
    return fill_objects(texts).reshape(batch.shape)
