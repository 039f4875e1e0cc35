"""Steps that change the array set or dtypes: Concatenate, Rename, Cast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.names import normalize_names
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform.base import Arrays, TransformInputError
from kfp_mindspore.transform.pipeline import Step


class Concatenate(Step):
    """Several columns to one float32 matrix, in their place.

    Args:
        columns: The columns in order, each numbers with shape (N,) or (N, F).
        name: Result name, with shape (N, the F's sum).
    """

    def __init__(self, columns: Sequence[str], name: str) -> None:
        super().__init__()
        if isinstance(columns, str) or not columns or not all(isinstance(column, str) for column in columns):
            raise UserError(f"Concatenate: columns: must be a list of names, at least one, got {columns!r}")
        if len(set(columns)) < len(columns):
            raise UserError(f"Concatenate: columns: must be different, got {', '.join(map(repr, columns))}")
        if not name or not isinstance(name, str):
            raise UserError(f"Concatenate: name: must be a text, got {name!r}")
        self.columns = normalize_names(tuple(columns))
        self.name = name

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with `name` replacing the columns."""
        parts = []
        for column in self.columns:
            if column not in arrays:
                raise UserError(f"Concatenate: columns: no {column!r}, found {', '.join(map(repr, arrays)) or 'none'}")
            array = arrays[column]
            if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
                raise TransformInputError(
                    f"input {column!r}: must be numbers of shape (N,) or (N, F), got {array.dtype} of {array.shape}"
                )
            parts.append(array.reshape(len(array), -1).astype(np.float32, copy=False))
        rest = {name: array for name, array in arrays.items() if name not in self.columns}
        if self.name in rest:
            raise UserError(f"Concatenate: name: there is a column {self.name!r} already")
        return {self.name: np.concatenate(parts, axis=1), **rest}

    def infer_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Raise UserError: the columns' widths are not known from the result's."""
        raise UserError(_name_missing_inputs(self))


class Rename(Step):
    """A column under another name.

    Args:
        name: The new name.
        column: The input; may be left out when there is only one.
    """

    def __init__(self, name: str, *, column: str = "") -> None:
        super().__init__(column)
        if not name or not isinstance(name, str):
            raise UserError(f"Rename: name: must be a text, got {name!r}")
        self.name = name

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays in the same order."""
        column = self.get_column(arrays)
        if self.name != column and self.name in arrays:
            raise UserError(f"Rename: name: there is a column {self.name!r} already")
        return {self.name if name == column else name: array for name, array in arrays.items()}

    def infer_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs with the former name."""
        if not self.column:
            raise UserError(_name_missing_inputs(self))
        return tuple(dataclasses.replace(spec, name=self.column) if spec.name == self.name else spec for spec in specs)

    def infer_outputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs with the new name."""
        column = self.get_column(spec.name for spec in specs)
        return tuple(dataclasses.replace(spec, name=self.name) if spec.name == column else spec for spec in specs)


class Cast(Step):
    """Numbers to another dtype.

    Args:
        dtype: A number dtype's NumPy name, such as `float32`.
        column: The input; may be left out when there is only one.
    """

    def __init__(self, dtype: str, *, column: str = "") -> None:
        super().__init__(column)
        try:
            known = np.dtype(dtype).kind in "biuf" and np.dtype(dtype).name == dtype
        except TypeError:
            known = False
        if not known:
            raise UserError(f"Cast: dtype: must be NumPy's name of a number, such as float32, got {dtype!r}")
        self.dtype = dtype

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the batch in the dtype."""
        if batch.dtype == object:
            raise TransformInputError("input: must hold numbers, got texts or files")
        with np.errstate(all="ignore"):
            return batch.astype(self.dtype, copy=False)

    def infer_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Raise UserError: the input dtype is not known from the result's."""
        raise UserError(_name_missing_inputs(self))

    def infer_output(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with the dtype."""
        return dataclasses.replace(spec, dtype=self.dtype)


def _name_missing_inputs(step: Step) -> str:
    return f"{type(step).__name__}: the inputs before it must be named: Pipeline(…, inputs=[TensorSpec(…), …])"
