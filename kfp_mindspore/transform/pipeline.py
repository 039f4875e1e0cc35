"""A transform made of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import Arrays, Transform, TransformInputError, make_shape
from kfp_mindspore.transform.step import Step, is_ragged


class Pipeline(Transform):
    """Steps before the graph and steps after it; what clients send and get follows from them and the signature.

    Args:
        pre: Steps that make the graph's inputs, first one first.
        post: Steps that turn the graph's outputs into answers, first one first.
        inputs: What clients send, if it does not follow from the steps.
        outputs: What clients get, if it does not follow from the steps.

    Raises:
        UserError: What is given is no step.
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
        """Whether there are steps before the graph."""
        return bool(self.pre)

    @property
    def postprocesses(self) -> bool:
        """Whether there are steps after the graph."""
        return bool(self.post)

    def preprocess(self, inputs: Arrays) -> Arrays:
        """Apply the steps before the graph.

        Raises:
            TransformInputError: A step refuses its input, or rows have different shapes at the end.
        """
        arrays = inputs
        for step in self.pre:
            arrays = step.apply(arrays)
        for name, array in arrays.items():
            if is_ragged(array):
                shapes = sorted({row.shape for row in array})
                raise TransformInputError(
                    f"input {name!r}: all rows must have the same shape, got {' and '.join(map(str, shapes[:3]))}"
                )
        return arrays

    def postprocess(self, outputs: Arrays) -> Arrays:
        """Apply the steps after the graph."""
        arrays = outputs
        for step in self.post:
            arrays = step.apply(arrays)
        return arrays

    def describe_inputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Follow the steps from what the graph takes back to what clients send."""
        if self.inputs is not None:
            return self.inputs
        specs = signature.inputs
        for step in reversed(self.pre):
            specs = step.find_inputs(specs)
        return specs

    def describe_outputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Follow the steps from what the graph gives to what clients get."""
        if self.outputs is not None:
            return self.outputs
        specs = signature.outputs
        for step in self.post:
            specs = step.find_outputs(specs)
        return specs

    def make_example(self, signature: Signature) -> Arrays | None:
        """Return zeros, and for inputs of bytes what the steps that take them offer."""
        offered: Arrays = {}
        specs = signature.inputs
        for step in reversed(self.pre):
            for after, before in zip(specs, before_specs := step.find_inputs(specs), strict=False):
                if before.dtype == BYTES != after.dtype and (rows := step.make_example(after)) is not None:
                    offered[before.name] = rows
            specs = before_specs
        result: Arrays = {}
        for spec in self.describe_inputs(signature):
            if spec.name in offered:
                result[spec.name] = offered[spec.name]
            elif spec.dtype == BYTES:
                return None
            else:
                result[spec.name] = np.zeros(make_shape(spec.shape), spec.dtype)
        return result
