"""What a transform is, and whose fault its failure is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.operation import Operation

__all__ = [
    "BYTES",
    "Arrays",
    "Signature",
    "TensorSpec",
    "Transform",
    "TransformFailedError",
    "TransformInputError",
]

Arrays = dict[str, NDArray[Any]]
_EXAMPLE_ROWS = 2
_EXAMPLE_LENGTH = 8


class TransformInputError(UserError):
    """What a client sent is not what the transform takes: the client's fault, told to the client (400).

    Raise it in `preprocess` with a message that names the input, what was expected and what was found.
    """


class TransformFailedError(KfpMindSporeError):
    """The transform failed on an input that it should take: the model's fault (500).

    The message names the transform, the method and the kind of error, and nothing more, so it may be sent to a client;
    `__cause__` is what was raised, for the log.
    """


class Transform:
    """Turns what clients send into what the graph takes, and what it gives into what clients get.

    Override what is needed. Arrays are batches: their first axis is the rows of one request, at least one. The methods
    are called by several threads at once and must not keep anything between calls.

    `inputs` and `outputs` say what clients send and get, with a first dimension of -1; None means what the graph takes
    and gives. A `TensorSpec` of dtype `bytes` is an array of `bytes` objects: a text (UTF-8) or an encoded image.
    """

    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None

    def preprocess(self, inputs: Arrays) -> Arrays:
        """Return what the graph takes.

        Args:
            inputs: What a client sent, by name; it fits `inputs`.

        Returns:
            Arrays by name that fit the model's signature, with as many rows.

        Raises:
            TransformInputError: What the client sent cannot be used.
        """
        return inputs

    def postprocess(self, outputs: Arrays) -> Arrays:
        """Return what a client gets.

        Args:
            outputs: What the graph gave, by name.

        Returns:
            Arrays by name that fit `outputs`, with as many rows.
        """
        return outputs

    @property
    def preprocesses(self) -> bool:
        """Whether `preprocess` does anything."""
        return type(self).preprocess is not Transform.preprocess

    @property
    def postprocesses(self) -> bool:
        """Whether `postprocess` does anything."""
        return type(self).postprocess is not Transform.postprocess

    def describe_inputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Return what clients send, for a model with this signature; default `inputs`."""
        return signature.inputs if self.inputs is None else tuple(self.inputs)

    def describe_outputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Return what clients get, for a model with this signature; default `outputs`."""
        return signature.outputs if self.outputs is None else tuple(self.outputs)

    def make_example(self, signature: Signature) -> Arrays | None:
        """Return a request of two rows that export tries `preprocess` with; default zeros.

        Returns:
            Arrays by name as `inputs` says, or None when an input is of bytes, whose meaning is not known here.
        """
        specs = self.describe_inputs(signature)
        if any(spec.dtype == BYTES for spec in specs):
            return None
        return {spec.name: np.zeros(make_shape(spec.shape), spec.dtype) for spec in specs}

    def as_operation(self, *columns: str, batched: bool = False) -> Operation:
        """Return `preprocess` as an operation of `mindspore.dataset`, so that training sees what serving sees.

        Such as `dataset.map(transform.as_operation("image"), input_columns=["image"])`. An input of bytes may be a
        column of texts, or of encoded files as one-dimensional uint8 arrays, as ImageFolderDataset and others give.

        Args:
            columns: Names of the transform's inputs, in the order of the dataset's `input_columns`.
            batched: Whether the dataset was batched already; else each row is a batch of one.

        Returns:
            A callable that takes an array a column and gives an array for each array that `preprocess` returns, in its
            order.
        """
        return Operation(self.preprocess, columns, batched)


def make_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with numbers for what is free: two rows, and eight of the rest."""
    return tuple(size if size >= 0 else (_EXAMPLE_LENGTH if axis else _EXAMPLE_ROWS) for axis, size in enumerate(shape))
