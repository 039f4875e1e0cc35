"""Steps for numbers that are fitted on the training split: standardisation and scaling to 0..1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.transform.base import Arrays
from kfp_mindspore.transform.pipeline import Step, require_fitted
from kfp_mindspore.transform.values import Normalize


class Standardize(Step):
    """Numbers to mean 0 and standard deviation 1, for each channel or feature (axis 1); fitted to a `Normalize`.

    A constant channel keeps its deviation: its std is 1.

    Args:
        column: The input; may be left out when there is only one.
    """

    def fit(self, arrays: Arrays) -> Normalize:
        """Return the `Normalize` of these arrays.

        Raises:
            UserError: The column holds no numbers, or NaN or infinity.
        """
        column, values, axes = _get_numbers(self, arrays)
        std = values.std(axis=axes)
        return Normalize(_to_list(values.mean(axis=axes)), _to_list(_replace_constants(std)), column=column)

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Raise UserError: the step must be fitted first."""
        raise require_fitted(self)


class MinMax(Step):
    """Numbers to 0..1, for each channel or feature (axis 1); fitted to a `Normalize`. A constant channel becomes 0.

    Args:
        column: The input; may be left out when there is only one.
    """

    def fit(self, arrays: Arrays) -> Normalize:
        """Return the `Normalize` of these arrays.

        Raises:
            UserError: The column holds no numbers, or NaN or infinity.
        """
        column, values, axes = _get_numbers(self, arrays)
        least = values.min(axis=axes)
        return Normalize(_to_list(least), _to_list(_replace_constants(values.max(axis=axes) - least)), column=column)

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Raise UserError: the step must be fitted first."""
        raise require_fitted(self)


def _get_numbers(step: Step, arrays: Arrays) -> tuple[str, NDArray[np.float64], tuple[int, ...]]:
    """Return the column's name in the step, its values as float64, and the axes to reduce."""
    column = step.get_column(arrays)
    array = arrays[column]
    where = f"{type(step).__name__}: {column!r}"
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: must hold numbers, its dtype is {'bytes' if array.dtype == object else array.dtype}")
    if not len(array):
        raise UserError(f"{where}: needs at least one sample to be fitted")
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise UserError(f"{where}: must hold finite numbers, {int((~np.isfinite(values)).sum())} are NaN or infinite")
    return step.column, values, tuple(axis for axis in range(values.ndim) if axis != 1)


def _replace_constants(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    # A deviation that float32 cannot represent, 1e-60 for example, would become 0 as well.
    return np.where(scale > np.finfo(np.float32).tiny, scale, 1.0)


def _to_list(values: NDArray[np.float64]) -> list[float]:
    numbers: list[float] = np.atleast_1d(values).tolist()
    return numbers
