"""Steps for numbers that are fitted on the training split: standardisation and scaling to 0..1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import is_ragged
from kfp_mindspore.transform.base import Arrays
from kfp_mindspore.transform.pipeline import Step, require_fitted
from kfp_mindspore.transform.values import Normalize

Floats = NDArray[np.float64]


class _Scaling(Step):
    """Subtracts and divides, for each channel or feature (axis 1, in lists the last one); fitted to a `Normalize`."""

    def fit(self, arrays: Arrays) -> Normalize:
        """Return the `Normalize` for these arrays.

        Raises:
            UserError: The column holds no numbers, or NaN or infinity.
        """
        values, axis = _get_numbers(self, arrays), 1
        if is_ragged(arrays[self.get_column(arrays)]):
            # All values of all lists, each with its features last.
            axis = -1
            offset, scale = self.measure(values, tuple(range(max(values.ndim - 1, 1))))
        else:
            offset, scale = self.measure(values, tuple(one for one in range(values.ndim) if one != 1))
        # A deviation that float32 cannot represent, 1e-60 for example, would become 0 as well.
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, 1.0)
        return Normalize(_to_list(offset), _to_list(scale), axis=axis, column=self.column)

    def measure(self, values: Floats, axes: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return what is subtracted, and the divisor; 0 for a constant channel."""
        raise NotImplementedError(f"{type(self).__name__}.measure")

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Raise UserError: the step must be fitted first."""
        raise require_fitted(self)


class Standardize(_Scaling):
    """Numbers to mean 0 and standard deviation 1, for each channel or feature (axis 1); fitted to a `Normalize`.

    A constant channel keeps its deviation: its std is 1. In lists of unequal lengths the features are the last axis:
    put the step before `Pad`, so that padding does not count.

    Args:
        column: The input; may be left out when there is only one.
    """

    def measure(self, values: Floats, axes: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return mean and standard deviation."""
        return values.mean(axis=axes), values.std(axis=axes)


class MinMax(_Scaling):
    """Numbers to 0..1, for each channel or feature (axis 1); fitted to a `Normalize`. A constant channel becomes 0.

    Args:
        column: The input; may be left out when there is only one.
    """

    def measure(self, values: Floats, axes: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return the least value and the range."""
        least = values.min(axis=axes)
        return least, values.max(axis=axes) - least


def _get_numbers(step: Step, arrays: Arrays) -> Floats:
    """Return the step column's values as float64."""
    column = step.get_column(arrays)
    array = arrays[column]
    array = np.concatenate(array.tolist()) if is_ragged(array) else array
    where = f"{type(step).__name__}: {column!r}"
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: must hold numbers, its dtype is {'bytes' if array.dtype == object else array.dtype}")
    if not len(array):
        raise UserError(f"{where}: needs at least one sample to be fitted")
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise UserError(f"{where}: must hold finite numbers, {int((~np.isfinite(values)).sum())} are NaN or infinite")
    return values


def _to_list(values: Floats) -> list[float]:
    numbers: list[float] = np.atleast_1d(values).tolist()
    return numbers
