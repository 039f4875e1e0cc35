"""Steps for values: normalisation as preprocessing, probabilities and top classes as postprocessing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import Arrays, TransformInputError, fill_objects
from kfp_mindspore.transform.pipeline import Step, keep_float, require_float


class Normalize(Step):
    """`(value - mean) / std`, for each channel or feature.

    Args:
        mean: One number, or one a channel.
        std: One number, or one a channel; none may be 0.
        axis: The channels' axis: 1, or -1 for the last one, as the values at each step of a sequence have it.
        column: The input; may be left out when there is only one.
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], *, axis: int = 1, column: str = ""
    ) -> None:
        super().__init__(column)
        if axis not in (1, -1) or isinstance(axis, bool):
            raise UserError(f"Normalize: axis: must be 1 or -1, got {axis!r}")
        self.axis = axis
        self.mean = np.atleast_1d(np.asarray(mean, np.float32))
        self.std = np.atleast_1d(np.asarray(std, np.float32))
        if self.mean.ndim != 1 or self.std.ndim != 1 or len({self.mean.size, self.std.size} - {1}) > 1:
            raise UserError(f"Normalize: mean and std: must be one number or one a channel, got {mean!r} and {std!r}")
        if not np.isfinite(self.mean).all() or not np.isfinite(self.std).all() or (self.std == 0).any():
            raise UserError(f"Normalize: mean and std: must be finite, std not 0, got {mean!r} and {std!r}")

    @property
    def channels(self) -> int:
        """How many channels mean and std have; 1 when they apply to any number."""
        return max(self.mean.size, self.std.size)

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Normalise; float32, or the batch's own floating type."""
        if self.channels > 1 and (batch.ndim < 2 or batch.shape[self.axis] != self.channels):
            raise TransformInputError(
                f"input: must have {self.channels} channels on axis {self.axis}, got shape {batch.shape}"
            )
        shape = (-1,) + (1,) * (max(batch.ndim - 2, 0) if self.axis == 1 else 0)
        with np.errstate(all="ignore"):
            values: NDArray[Any] = (batch.astype(np.float32, copy=False) - self.mean.reshape(shape)) / self.std.reshape(
                shape
            )
            return values.astype(keep_float(batch.dtype), copy=False)

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec itself, if the channel count fits."""
        require_float(self, spec)
        if self.channels > 1 and (len(spec.shape) < 2 or spec.shape[self.axis] not in (-1, self.channels)):
            raise UserError(f"Normalize: is for {self.channels} channels, but {spec.name!r} has shape {spec.shape}")
        return spec


class Softmax(Step):
    """Scores to probabilities along the last axis.

    Args:
        column: The output; may be left out when there is only one.
    """

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return probabilities in the batch's type."""
        scores = batch.astype(np.float32) if batch.dtype != np.float64 else batch
        with np.errstate(all="ignore"):
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares: NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
        return shares.astype(keep_float(batch.dtype), copy=False)

    def infer_output(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec itself, if it holds floating numbers."""
        require_float(self, spec)
        _require_classes(self, spec)
        return spec


class Label(Step):
    """The class name with the highest score, beside the scores; the first among equal scores.

    Args:
        labels: Class names by index.
        name: Output name with the class names (UTF-8).
        last: Whether only the last position in scores (N, …, L, K) is named: a language model's next text.
        column: The output with the scores, with shape (N, …, K); may be left out when there is only one.
    """

    def __init__(self, labels: Sequence[str], *, name: str = "label", last: bool = False, column: str = "") -> None:
        super().__init__(column)
        if isinstance(labels, str) or not labels or not all(isinstance(label, str) for label in labels):
            raise UserError(f"Label: labels: must be a list of texts, at least one, got {labels!r}")
        if not name or not isinstance(name, str):
            raise UserError(f"Label: name: must be a text, got {name!r}")
        self.labels = tuple(labels)
        self.name = name
        self.last = last
        self._texts = fill_objects([label.encode() for label in self.labels])

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the best classes' names, `bytes` objects with shape (N, …)."""
        batch = batch[..., -1, :] if self.last else batch
        # An object array without dimensions would become a single object.
        return np.asarray(self._texts[batch.argmax(axis=-1)], object)

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays and the class names."""
        return {**arrays, self.name: self.compute(arrays[self.get_column(arrays)])}

    def infer_outputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs and the class names' spec."""
        column = self.get_column(spec.name for spec in specs)
        (spec,) = [spec for spec in specs if spec.name == column]
        require_float(self, spec)
        count = _require_classes(self, spec)
        if count not in (-1, len(self.labels)):
            raise UserError(f"Label: labels: must be {count}, one a class of {column!r}, got {len(self.labels)}")
        if any(spec.name == self.name for spec in specs):
            raise UserError(f"Label: name: there is an output {self.name!r} already")
        if self.last and len(spec.shape) < 3:
            raise UserError(f"Label: last: {column!r} must have shape (-1, positions, classes), has {spec.shape}")
        return (*specs, TensorSpec(self.name, BYTES, spec.shape[: -2 if self.last else -1]))


class TopK(Step):
    """The k classes with the highest scores along the last axis, highest first; the first among equal scores.

    Replaces its column by two: the classes, int64 or, with labels, `bytes` (UTF-8 texts), and their scores.

    Args:
        k: Class count.
        labels: Class names by index.
        classes: Output name with the classes.
        scores: Output name with the scores.
        column: The output; may be left out when there is only one.
    """

    def __init__(
        self,
        k: int,
        labels: Sequence[str] = (),
        *,
        classes: str = "classes",
        scores: str = "scores",
        column: str = "",
    ) -> None:
        super().__init__(column)
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UserError(f"TopK: k: must be a number of at least 1, got {k!r}")
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise UserError(f"TopK: labels: must be a list of texts, got {labels!r}")
        if classes == scores:
            raise UserError(f"TopK: classes and scores: must have different names, both are {scores!r}")
        self.k = k
        self.labels = tuple(labels)
        self.classes = classes
        self.scores = scores
        self._texts = fill_objects([label.encode() for label in self.labels])

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the top classes' indexes, int64 with shape (N, …, k)."""
        return np.argsort(-batch, axis=-1, kind="stable")[..., : self.k].astype(np.int64, copy=False)

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with the classes and the scores instead of the column."""
        column = self.get_column(arrays)
        indexes = self.compute(arrays[column])
        best = np.take_along_axis(arrays[column], indexes, axis=-1)
        split = {self.classes: self._texts[indexes] if self.labels else indexes, self.scores: best}
        result: Arrays = {}
        for name, array in arrays.items():
            result |= split if name == column else {name: array}
        return result

    def infer_outputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs with specs for classes and scores instead of the column."""
        column = self.get_column(spec.name for spec in specs)
        result: list[TensorSpec] = []
        for spec in specs:
            if spec.name != column:
                result.append(spec)
                continue
            require_float(self, spec)
            count = _require_classes(self, spec)
            if count >= 0 and self.k > count:
                raise UserError(f"TopK: k: must be at most {count}, the classes of {spec.name!r}, got {self.k}")
            if self.labels and count >= 0 and len(self.labels) != count:
                raise UserError(f"TopK: labels: must be {count}, one a class of {spec.name!r}, got {len(self.labels)}")
            shape = (*spec.shape[:-1], self.k)
            result.append(TensorSpec(self.classes, BYTES if self.labels else "int64", shape))
            result.append(dataclasses.replace(spec, name=self.scores, shape=shape))
        return tuple(result)


def _require_classes(step: Step, spec: TensorSpec) -> int:
    if len(spec.shape) < 2:
        raise UserError(f"{type(step).__name__}: {spec.name!r} must have shape (-1, classes), has {spec.shape}")
    return spec.shape[-1]
