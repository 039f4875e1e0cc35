"""A transform made of steps, each a function on one named array."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.names import normalize_names
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec, is_ragged
from kfp_mindspore.transform.base import (
    Arrays,
    Transform,
    TransformInputError,
    fill_objects,
    make_shape,
    to_bytes_objects,
)


class Step:
    """One pipeline step; called with a row, it is a `mindspore.dataset` operation too.

    Subclasses override `compute`, and `infer_input` or `infer_output` when it changes a dtype or shape.

    Args:
        column: The input or output to compute; may be left out when there is only one.
    """

    max_rows: int | None = None
    """Most rows per call, whatever they hold; None without a limit."""
    unknown_rule = ""
    """Rule for a request's unknown categories, `ignore` or `refuse`; empty for a step without categories."""

    def __init__(self, column: str = "") -> None:
        self.column: str = normalize_names(column)

    def fit(self, arrays: Arrays) -> Step:
        """Return the step with what it learns from the training split, by default the step itself.

        Args:
            arrays: The training split's arrays at this step, by name.
        """
        return self

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the new batch with shape (N, …); a row's result must not depend on the other rows."""
        raise NotImplementedError(f"{type(self).__name__}.compute")

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with this step's column replaced.

        A batch whose rows have different shapes is an array of N arrays, and is computed row by row.
        """
        column = self.get_column(arrays)
        batch = arrays[column]
        if is_ragged(batch):
            return {**arrays, column: stack_rows([self.compute(row[np.newaxis])[0] for row in batch])}
        return {**arrays, column: self.compute(batch)}

    def find_unknown(self, computed: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of a batch's categories were unknown, in its shape; for steps with an `unknown_rule` only.

        Args:
            computed: The step's result.
        """
        raise NotImplementedError(f"{type(self).__name__}.find_unknown")

    def adapt(self, parameters: Mapping[str, Any]) -> Step:
        """Return the step for a request with parameters, by default itself; see `Transform.adapt`."""
        return self

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return the input spec for the output `spec`; called for preprocessing, last step first.

        Raises:
            UserError: The step cannot return such an output.
        """
        return spec

    def infer_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return all specs before this step; called for preprocessing without explicit inputs, last step first.

        Raises:
            UserError: The step cannot return such outputs, or its inputs cannot be inferred.
        """
        return self.replace_spec(specs, self.infer_input)

    def infer_output(self, spec: TensorSpec) -> TensorSpec:
        """Return the output spec for the input `spec`; called for postprocessing.

        Raises:
            UserError: The step does not accept such an input.
        """
        return spec

    def infer_outputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return all specs after this step."""
        return self.replace_spec(specs, self.infer_output)

    def make_example(self, spec: TensorSpec) -> NDArray[Any] | None:
        """Return an input with two rows that gives the output `spec`; None where zeros do, in any free length."""
        return None

    def get_column(self, names: Iterable[str]) -> str:
        """Return the array name to compute.

        Raises:
            UserError: There are several and none was named, or the named one is missing.
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

    def replace_spec(
        self, specs: Sequence[TensorSpec], function: Callable[[TensorSpec], TensorSpec]
    ) -> tuple[TensorSpec, ...]:
        """Return the specs with `function` applied to this step's column."""
        column = self.get_column(spec.name for spec in specs)
        return tuple(
            dataclasses.replace(function(spec), name=spec.name) if spec.name == column else spec for spec in specs
        )

    def __call__(self, row: Any) -> Any:
        """Compute one row, as `dataset.map` calls it."""
        batch = fill_objects([row]) if isinstance(row, bytes | str) else np.asarray(row)[np.newaxis]
        return np.asarray(self.compute(to_bytes_objects(batch))[0])


class Pipeline(Transform):
    """Steps before the graph and steps after it; request and response specs are inferred from them.

    Args:
        pre: Preprocessing steps in order.
        post: Postprocessing steps in order.
        inputs: Request specs, where they cannot be inferred.
        outputs: Response specs, where they cannot be inferred.

    Raises:
        UserError: An item is not a step.
    """

    def __init__(
        self,
        pre: Sequence[Step] = (),
        post: Sequence[Step] = (),
        *,
        inputs: Sequence[TensorSpec] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
    ) -> None:
        for kind, steps in (("pre", pre), ("post", post)):
            for step in steps:
                if not isinstance(step, Step):
                    raise UserError(f"Pipeline: {kind}: must hold steps such as Resize((32, 32)), got {step!r}")
        self.pre = tuple(pre)
        self.post = tuple(post)
        self.inputs = None if inputs is None else tuple(inputs)
        self.outputs = None if outputs is None else tuple(outputs)

    @property
    def preprocesses(self) -> bool:
        """Whether there are preprocessing steps."""
        return bool(self.pre)

    @property
    def postprocesses(self) -> bool:
        """Whether there are postprocessing steps."""
        return bool(self.post)

    @property
    def max_rows(self) -> int | None:
        """Most rows per `preprocess` call: its steps' least limit."""
        return min((step.max_rows for step in self.pre if step.max_rows is not None), default=None)

    def preprocess(self, inputs: Arrays) -> Arrays:
        """Apply the preprocessing steps.

        Raises:
            TransformInputError: A step rejects its input, or rows have different shapes after the last step.
        """
        return self._preprocess(inputs, None)

    def preprocess_request(self, inputs: Arrays, unknown: dict[str, int]) -> Arrays:
        """Apply the preprocessing steps, with each step's rule for unknown categories.

        Raises:
            TransformInputError: As `preprocess`, or a category is unknown where that is refused.
        """
        return self._preprocess(inputs, unknown)

    def _preprocess(self, inputs: Arrays, unknown: dict[str, int] | None) -> Arrays:
        arrays = inputs
        for step in self.pre:
            given, arrays = arrays, step.apply(arrays)
            if unknown is not None and step.unknown_rule:
                column = step.get_column(given)
                if count := _count_unknown(step, column, given[column], arrays[column]):
                    unknown[column] = unknown.get(column, 0) + count
        for name, array in arrays.items():
            if is_ragged(array):
                shapes = sorted({row.shape for row in array})
                raise TransformInputError(
                    f"input {name!r}: all rows must have the same shape, got {' and '.join(map(str, shapes[:3]))}"
                )
        return arrays

    def adapt(self, parameters: Mapping[str, Any]) -> Pipeline:
        """Return the pipeline with each step that a request's parameters change.

        Raises:
            TransformInputError: A known parameter has a wrong value.
        """
        adapted = copy.copy(self)
        adapted.pre, adapted.post = (tuple(step.adapt(parameters) for step in steps) for steps in (self.pre, self.post))
        return adapted

    def postprocess(self, outputs: Arrays) -> Arrays:
        """Apply the postprocessing steps."""
        arrays = outputs
        for step in self.post:
            arrays = step.apply(arrays)
        return arrays

    def describe_inputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Infer request specs, from the graph's inputs back through the steps."""
        if self.inputs is not None:
            return self.inputs
        specs = signature.inputs
        for step in reversed(self.pre):
            specs = step.infer_inputs(specs)
        return specs

    def describe_outputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Infer response specs, from the graph's outputs through the steps."""
        if self.outputs is not None:
            return self.outputs
        specs = signature.outputs
        for step in self.post:
            specs = step.infer_outputs(specs)
        return specs

    def make_example(self, signature: Signature) -> Arrays | None:
        """Return zeros, and for byte inputs and lists the examples from the steps that decode or pad them.

        Explicit inputs have an example only if none holds bytes.
        """
        if self.inputs is not None:
            return super().make_example(signature)
        decoded: Arrays = {}
        specs = signature.inputs
        for step in reversed(self.pre):
            column = step.get_column(spec.name for spec in specs)
            (spec,) = [spec for spec in specs if spec.name == column]
            if (rows := step.make_example(spec)) is not None:
                decoded[column] = rows
            specs = step.infer_inputs(specs)
        described = self.describe_inputs(signature)
        if any(spec.dtype == BYTES and spec.name not in decoded for spec in described):
            return None
        examples = {spec.name: decoded.get(spec.name) for spec in described}
        return {
            spec.name: np.zeros(make_shape(spec.shape), spec.dtype)
            if (rows := examples[spec.name]) is None or (rows.dtype == object) != (spec.dtype == BYTES)
            else rows
            for spec in described
        }


def stack_rows(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Return rows as one batch: an array when their shapes are equal, else an array of arrays."""
    if all(row.shape == rows[0].shape for row in rows):
        return np.stack(rows)
    return fill_objects(rows)


def _count_unknown(step: Step, column: str, given: NDArray[Any], computed: NDArray[Any]) -> int:
    """Return how many of a batch's categories are unknown; its rows may have different shapes.

    Raises:
        TransformInputError: There is one, and the step refuses them.
    """
    if not is_ragged(given):
        mask = step.find_unknown(computed)
        count = int(np.count_nonzero(mask))
        if count and step.unknown_rule == "refuse":
            index = np.unravel_index(int(np.argmax(mask)), mask.shape)
            _refuse_unknown(column, int(index[0]), given[index])
        return count
    masks = [step.find_unknown(row) for row in computed]
    if step.unknown_rule == "refuse":
        for row, (values, mask) in enumerate(zip(given, masks, strict=True)):
            if mask.any():
                _refuse_unknown(column, row, values[mask].flat[0])
    return sum(int(np.count_nonzero(mask)) for mask in masks)


def _refuse_unknown(column: str, row: int, value: Any) -> NoReturn:
    shown = value.decode(errors="replace") if isinstance(value, bytes) else np.asarray(value).item()
    raise TransformInputError(f"input {column!r}: row {row}: unknown category {shown!r:.80}, not in the training data")


def keep_float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype for a result computed as float32: a floating input's dtype, else float32."""
    return dtype if dtype.kind == "f" else np.dtype(np.float32)


def require_fitted(step: Step) -> UserError:
    """Return the error for a step that computes before it was fitted."""
    return UserError(f"{type(step).__name__}: must be fitted on the training split first")


def require_float(step: Step, spec: TensorSpec) -> None:
    """Reject a tensor that does not hold floating numbers.

    Raises:
        UserError: Naming the step and the tensor.
    """
    if not spec.dtype.startswith("float"):
        raise UserError(f"{type(step).__name__}: {spec.name!r} must hold floating numbers, its dtype is {spec.dtype}")
