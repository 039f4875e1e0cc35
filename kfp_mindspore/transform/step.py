"""What a pipeline is made of: one function of one named array."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform.base import Arrays
from kfp_mindspore.transform.operation import fill_objects, make_batch, take_row


class Step:
    """One step of a pipeline; also an operation of `mindspore.dataset` itself, called with a row.

    Subclasses override `compute`, and `find_input` or `find_output` when it changes a dtype or shape.

    Args:
        column: Which input or output it works on; may be left out when there is only one.
    """

    def __init__(self, column: str = "") -> None:
        self.column = column

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the new batch of shape (N, …); a row's result must not depend on the other rows."""
        raise NotImplementedError(f"{type(self).__name__}.compute")

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with this step's column computed anew.

        A batch of rows of different shapes is an array of N arrays: it is computed row by row.
        """
        column = self.find_column(arrays)
        batch = arrays[column]
        result = stack_rows([self.compute(row[np.newaxis])[0] for row in batch]) if is_ragged(batch) else None
        return {**arrays, column: self.compute(batch) if result is None else result}

    def find_input(self, spec: TensorSpec) -> TensorSpec:
        """Return what comes in when this must come out; asked of steps before the graph, last one first.

        Raises:
            UserError: This cannot come out.
        """
        return spec

    def find_output(self, spec: TensorSpec) -> TensorSpec:
        """Return what comes out when this comes in; asked of steps after the graph.

        Raises:
            UserError: This cannot come in.
        """
        return spec

    def find_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Do `find_input` for this step's column, and leave the others."""
        return self._replace(specs, self.find_input)

    def find_outputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Do `find_output` for this step's column, and leave the others."""
        return self._replace(specs, self.find_output)

    def make_example(self, spec: TensorSpec) -> NDArray[Any] | None:
        """Return two rows from which this step makes `spec`, if it takes bytes; None when it does not."""
        return None

    def find_column(self, names: Any) -> str:
        """Return the name of what this step works on.

        Raises:
            UserError: There are several and none was named, or the named one is not there.
        """
        names = tuple(names)
        listed = ", ".join(map(repr, names)) or "none"
        if not self.column and len(names) == 1:
            return str(names[0])
        if not self.column:
            raise UserError(f"{type(self).__name__}: column: must be named, one of {listed}")
        if self.column not in names:
            raise UserError(f"{type(self).__name__}: column: must be one of {listed}, got {self.column!r}")
        return self.column

    def __call__(self, row: Any) -> Any:
        """Compute one row, as `dataset.map` calls it."""
        return take_row(self.compute(make_batch(row)))

    def _replace(
        self, specs: Sequence[TensorSpec], function: Callable[[TensorSpec], TensorSpec]
    ) -> tuple[TensorSpec, ...]:
        column = self.find_column(spec.name for spec in specs)
        return tuple(
            dataclasses.replace(function(spec), name=spec.name) if spec.name == column else spec for spec in specs
        )


def is_ragged(batch: NDArray[Any]) -> bool:
    """Say whether a batch holds arrays of different shapes."""
    return batch.dtype == object and len(batch) > 0 and isinstance(batch.flat[0], np.ndarray)


def stack_rows(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Return rows as one batch: an array when their shapes are equal, else an array of arrays."""
    if all(row.shape == rows[0].shape for row in rows):
        return np.stack(rows)
    return fill_objects(rows)


def keep_float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a result that is computed as float32: that of a floating input, else float32."""
    return dtype if dtype.kind == "f" else np.dtype(np.float32)


def require_float(step: Step, spec: TensorSpec) -> None:
    """Refuse a tensor that holds no floating numbers.

    Raises:
        UserError: Naming the step and the tensor.
    """
    if not spec.dtype.startswith("float"):
        raise UserError(f"{type(step).__name__}: {spec.name!r} must hold floating numbers, its dtype is {spec.dtype}")
