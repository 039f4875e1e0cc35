"""A transform for one model: arrays are validated before and after each method, and errors are classified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec, describe_unequal_rows, get_dtype, list_mismatches
from kfp_mindspore.transform.base import (
    Arrays,
    Transform,
    TransformFailedError,
    TransformInputError,
    to_bytes_objects,
)

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BoundTransform:
    """A transform that fits a model. Its methods may be called by several threads concurrently.

    Args:
        name: The transform's origin: a file, or a registered name.
        transform: The transform.
        inputs: Request specs; the first dimension is -1 when the model has a batch.
        outputs: Response specs, as `inputs`.
        signature: The graph's inputs and outputs.
        light: Methods (`preprocess`, `postprocess`) whose time is a few nanoseconds per element, so that a thread for a
            small request costs more than the method.
    """

    name: str
    transform: Transform
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    signature: Signature
    light: frozenset[str] = frozenset()

    @property
    def preprocesses(self) -> bool:
        """Whether `run_preprocess` does anything but validate."""
        return self.transform.preprocesses

    @property
    def postprocesses(self) -> bool:
        """Whether `run_postprocess` does anything."""
        return self.transform.postprocesses

    def adapt(self, parameters: Mapping[str, Any]) -> BoundTransform:
        """Return the transform for a request with parameters.

        Raises:
            TransformInputError: A known parameter has a wrong value.
            TransformFailedError: The transform raised.
        """
        return replace(self, transform=self._guard("adapt", self.transform.adapt, parameters))

    def run_preprocess(self, inputs: Mapping[str, NDArray[Any]], unknown: dict[str, int] | None = None) -> Arrays:
        """Return the graph's inputs for one request.

        Args:
            inputs: The request's arrays; with dtype `bytes` as arrays of `bytes` objects.
            unknown: Receives the number of unknown categories by input, which are refused where the declaration says
                so; None for samples, whose unknown categories are computed in silence.

        Raises:
            TransformInputError: The request does not fit `inputs`, or the transform rejects it.
            TransformFailedError: The transform raised, or its result does not fit the signature.
        """
        given = dict(inputs)
        self._check_inputs(given)
        if not self.preprocesses:
            return given
        result = self._call("preprocess", self._get_preprocess(unknown), given)
        expected = self.signature.free_batch(self.signature.inputs)
        mismatches = self._list_result_mismatches(expected, result, given)
        if not mismatches:
            return result
        message = _join(mismatches)
        wrong = [spec for spec in expected if spec.name in mismatches]
        sizes_only = len(wrong) == len(mismatches) and all(_differs_in_size(spec, result) for spec in wrong)
        if sizes_only and any(spec.dtype == BYTES or -1 in spec.shape[1:] for spec in self.inputs):
            # The client chose the length: its image or text has another size than the model takes.
            raise TransformInputError(f"input: preprocessed, {message}")
        raise TransformFailedError(f"{self.name}: preprocess: its result does not fit the model: {message}")

    def run_postprocess(self, outputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the response for the graph's outputs from one request.

        Args:
            outputs: The graph's outputs.

        Returns:
            Arrays that fit `outputs`; with dtype `bytes` as arrays of `bytes` objects.

        Raises:
            TransformInputError: The transform rejects the request.
            TransformFailedError: The transform raised, or its result does not fit `outputs`.
        """
        given = dict(outputs)
        if not self.postprocesses:
            return given
        result = self._call("postprocess", self.transform.postprocess, given)
        texts = {spec.name for spec in self.outputs if spec.dtype == BYTES}
        result = {name: to_bytes_objects(array) if name in texts else array for name, array in result.items()}
        if mismatches := self._list_result_mismatches(self.outputs, result, given):
            raise TransformFailedError(
                f"{self.name}: postprocess: its result does not fit its outputs: {_join(mismatches)}"
            )
        return result

    def run_light_preprocess(self, inputs: Arrays, unknown: dict[str, int] | None = None) -> Arrays:
        """Run `preprocess`, if it is `light`, as `run_preprocess` does; the graph validates the result.

        Raises:
            TransformInputError: The request does not fit `inputs`, or a step rejects it.
            TransformFailedError: A step raised.
        """
        self._check_inputs(inputs)
        return self._guard("preprocess", self._get_preprocess(unknown), inputs)

    def run_light_postprocess(self, outputs: Arrays) -> Arrays:
        """Run `postprocess`, if it is `light`, on the graph's outputs.

        Raises:
            TransformFailedError: A step raised.
        """
        return self._guard("postprocess", self.transform.postprocess, outputs)

    def _get_preprocess(self, unknown: dict[str, int] | None) -> Callable[[Arrays], Arrays]:
        if unknown is None:
            return self.transform.preprocess
        return lambda arrays: self.transform.preprocess_request(arrays, unknown)

    def _check_inputs(self, given: Arrays) -> None:
        errors = [f"input {name!r}: {what}" for name, what in list_mismatches(self.inputs, given, ragged=True).items()]
        if not errors and self.signature.batch_size and (unequal := describe_unequal_rows(given)):
            errors = [f"inputs: {unequal}"]
        if errors:
            raise TransformInputError("; ".join(errors))

    def _guard(self, method: str, function: Callable[[_Given], _Result], argument: _Given) -> _Result:
        try:
            return function(argument)
        except TransformInputError:
            raise
        except (Exception, SystemExit) as error:
            raise TransformFailedError(f"{self.name}: {method} failed with {type(error).__name__}") from error

    def _call(self, method: str, function: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
        # Arrays that view the request's own bytes are read-only; transforms may change their arguments.
        writable = {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}
        result: Any = self._guard(method, function, writable)
        if not isinstance(result, Mapping):
            raise TransformFailedError(
                f"{self.name}: {method}: must return arrays by name, got {type(result).__name__}"
            )
        for name, array in result.items():
            if not isinstance(name, str) or not isinstance(array, np.ndarray):
                raise TransformFailedError(
                    f"{self.name}: {method}: must return NumPy arrays by name, got {name!r}: {type(array).__name__}"
                )
        return dict(result)

    def _list_result_mismatches(self, specs: Sequence[TensorSpec], result: Arrays, given: Arrays) -> dict[str, str]:
        found = list_mismatches(specs, result)
        if found or not self.signature.batch_size:
            return found
        rows = len(next(iter(given.values())))
        return {
            name: f"must have {rows} rows, as the request has, got {len(array)}"
            for name, array in result.items()
            if len(array) != rows
        }


def bind_transform(transform: Transform, signature: Signature, name: str) -> BoundTransform:
    """Validate a transform against a model.

    Args:
        transform: The transform.
        signature: The graph's inputs and outputs.
        name: The transform's origin.

    Raises:
        UserError: It does not fit; the message names the transform and the tensor.
    """
    specs = {}
    for kind, describe in (("inputs", transform.describe_inputs), ("outputs", transform.describe_outputs)):
        try:
            found: Any = describe(signature)
        except UserError as error:
            raise UserError(f"{name}: {kind}: {error.message}", hint=error.hint) from error
        except (Exception, SystemExit) as error:
            raise UserError(f"{name}: describe_{kind} failed: {type(error).__name__}: {error}") from error
        specs[kind] = _check_specs(f"{name}: {kind}", found, signature)
    if not transform.preprocesses and specs["inputs"] != signature.free_batch(signature.inputs):
        raise UserError(f"{name}: inputs: differ from the model's, but there is no preprocessing")
    if not transform.postprocesses and specs["outputs"] != signature.free_batch(signature.outputs):
        raise UserError(f"{name}: outputs: differ from the model's, but there is no postprocessing")
    return BoundTransform(name, transform, specs["inputs"], specs["outputs"], signature)


def _check_specs(where: str, specs: Any, signature: Signature) -> tuple[TensorSpec, ...]:
    if not isinstance(specs, Sequence) or not specs or not all(isinstance(spec, TensorSpec) for spec in specs):
        raise UserError(f"{where}: must be a tuple of TensorSpec, at least one, got {specs!r}")
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise UserError(f"{where}: must have different names, got {', '.join(map(repr, names))}")
    for spec in specs:
        if spec.dtype != BYTES and not _is_dtype(spec.dtype):
            raise UserError(
                f"{where}: {spec.name!r}: dtype must be bytes or NumPy's name of a number, got {spec.dtype!r}"
            )
        if any(not isinstance(size, int) or size < -1 for size in spec.shape) or (
            signature.batch_size and not spec.shape
        ):
            raise UserError(f"{where}: {spec.name!r}: shape must begin with -1, the rows, got {spec.shape}")
    return signature.free_batch(specs)


def _is_dtype(name: str) -> bool:
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return dtype.kind in "biufc" and dtype.name == name


def _differs_in_size(spec: TensorSpec, arrays: Arrays) -> bool:
    """Return whether only the size is wrong, in a dimension other than the batch."""
    array = arrays.get(spec.name)
    if array is None or get_dtype(array) != spec.dtype or array.ndim != len(spec.shape) or not len(array):
        return False
    return bool(spec.describe_mismatch(spec.dtype, array.shape))


def _join(mismatches: Mapping[str, str]) -> str:
    return "; ".join(f"{name!r}: {what}" for name, what in mismatches.items())
