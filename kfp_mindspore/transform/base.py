"""A model's transform, and its two kinds of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec

__all__ = [
    "BYTES",
    "Arrays",
    "Signature",
    "TensorSpec",
    "Transform",
    "TransformFailedError",
    "TransformInputError",
    "fill_objects",
    "make_shape",
    "to_bytes_objects",
]

Arrays = dict[str, NDArray[Any]]
_EXAMPLE_ROWS = 2
_EXAMPLE_LENGTH = 8


class TransformInputError(UserError):
    """An invalid request; the server responds 400 with the message.

    Raise it in `preprocess` with a message that names the input, what was expected and what was found.
    """


class TransformFailedError(KfpMindSporeError):
    """A transform that fails on a valid request; the server responds 500.

    The message names only the transform, the method and the error type, so it is safe to send to a client; `__cause__`
    is the original error, for the log.
    """


class Transform:
    """Preprocessing for requests and postprocessing for the graph's outputs.

    Override what is needed. Arrays are batches: the first axis holds one request's rows, at least one. Several threads
    call the methods concurrently, so the methods must keep no state between calls.

    `inputs` and `outputs` are the request and response specs, with first dimension -1; None means the graph's own. A
    `TensorSpec` with dtype `bytes` is an array of `bytes` objects: texts (UTF-8) or encoded images.
    """

    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None

    def preprocess(self, inputs: Arrays) -> Arrays:
        """Return the graph's inputs.

        Args:
            inputs: A request's arrays by name; they fit `inputs`.

        Returns:
            Arrays by name that fit the model's signature, with as many rows.

        Raises:
            TransformInputError: The request is invalid.
        """
        return inputs

    def preprocess_request(self, inputs: Arrays, unknown: dict[str, int]) -> Arrays:
        """Return the graph's inputs for a client's request, by default as `preprocess` does.

        Args:
            inputs: As for `preprocess`.
            unknown: Receives the number of unknown categories by input.

        Raises:
            TransformInputError: The request is invalid, or has an unknown category where that is refused.
        """
        return self.preprocess(inputs)

    def postprocess(self, outputs: Arrays) -> Arrays:
        """Return the response.

        Args:
            outputs: The graph's outputs by name.

        Returns:
            Arrays by name that fit `outputs`, with as many rows.
        """
        return outputs

    def adapt(self, parameters: Mapping[str, Any]) -> Transform:
        """Return the transform for a request with parameters, by default itself; unknown ones are ignored.

        Args:
            parameters: `parameters` of a V1 or V2 request, JSON values by name.

        Raises:
            TransformInputError: A known parameter has a wrong value.
        """
        return self

    @property
    def preprocesses(self) -> bool:
        """Whether `preprocess` does anything."""
        return type(self).preprocess is not Transform.preprocess

    @property
    def postprocesses(self) -> bool:
        """Whether `postprocess` does anything."""
        return type(self).postprocess is not Transform.postprocess

    @property
    def max_rows(self) -> int | None:
        """Most rows per `preprocess` call, whatever they hold; None without a limit."""
        return None

    def describe_inputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Return request specs for a model with this signature; default `inputs`."""
        return signature.inputs if self.inputs is None else tuple(self.inputs)

    def describe_outputs(self, signature: Signature) -> tuple[TensorSpec, ...]:
        """Return response specs for a model with this signature; default `outputs`."""
        return signature.outputs if self.outputs is None else tuple(self.outputs)

    def make_example(self, signature: Signature) -> Arrays | None:
        """Return a request with two rows, with which export validates `preprocess`; default zeros.

        Returns:
            Arrays by name that fit `inputs`, or None when an input holds bytes, which have no default.
        """
        specs = self.describe_inputs(signature)
        if any(spec.dtype == BYTES for spec in specs):
            return None
        return {spec.name: np.zeros(make_shape(spec.shape), spec.dtype) for spec in specs}


def make_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an example shape: two rows, and eight for any other free dimension."""
    return tuple(size if size >= 0 else (_EXAMPLE_LENGTH if axis else _EXAMPLE_ROWS) for axis, size in enumerate(shape))


def fill_objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return a one-dimensional object array; `np.array` would convert arrays and lists to further dimensions."""
    array: NDArray[Any] = np.empty(len(values), object)
    array[:] = values
    return array


def to_bytes_objects(array: NDArray[Any]) -> NDArray[Any]:
    """Return texts or bytes in any NumPy dtype as an array of `bytes` objects, other arrays unchanged."""
    if array.dtype.kind not in "SUO":
        return array
    values = [value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()]
    return fill_objects(values).reshape(array.shape)
