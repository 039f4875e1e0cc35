"""A transform for one model: what goes in and comes out is checked, and a failure is named by whose fault it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import Arrays, Transform, TransformFailedError, TransformInputError
from kfp_mindspore.transform.operation import fill_objects


@dataclass(frozen=True)
class BoundTransform:
    """A transform that was found to fit a model. Its methods may be called by several threads at once.

    Args:
        name: Where it came from: a file, or a registered name.
        transform: The transform itself.
        inputs: What clients send; the first dimension is -1 when the model has a batch.
        outputs: What clients get, as `inputs`.
        signature: What the graph takes and gives.
    """

    name: str
    transform: Transform
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    signature: Signature

    @property
    def preprocesses(self) -> bool:
        """Whether `run_preprocess` does anything."""
        return self.transform.preprocesses

    @property
    def postprocesses(self) -> bool:
        """Whether `run_postprocess` does anything."""
        return self.transform.postprocesses

    def run_preprocess(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Turn one request's arrays into what the graph takes.

        Args:
            inputs: What a client sent; inputs of dtype `bytes` as arrays of `bytes` objects.

        Raises:
            TransformInputError: The client's fault: it does not fit `inputs`, or the transform refuses it.
            TransformFailedError: The model's fault: the transform raised, or its result does not fit the signature.
        """
        given = dict(inputs)
        batched = has_batch(self.signature)
        if found := _compare(given, self.inputs, batched):
            raise TransformInputError("; ".join(f"input {name!r}: {what}" for name, what, _ in found))
        if not self.preprocesses:
            return given
        result = self._call("preprocess", self.transform.preprocess, _own(given))
        expected = widen(self.signature.inputs, batched)
        found = _compare(result, expected, batched, _count(given) if batched else None)
        if found:
            message = "; ".join(f"{name!r}: {what}" for name, what, _ in found)
            if all(by_size for _, _, by_size in found) and any(_is_open(spec) for spec in self.inputs):
                # Nothing is wrong but a length that the client chose: its picture or text has another size.
                raise TransformInputError(f"input: preprocessed, {message}")
            raise TransformFailedError(f"{self.name}: preprocess: its result does not fit the model: {message}")
        return result

    def run_postprocess(self, outputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Turn the rows that the graph gave for one request into what its client gets.

        Args:
            outputs: What the graph gave.

        Returns:
            Arrays that fit `outputs`; those of dtype `bytes` as arrays of `bytes` objects.

        Raises:
            TransformInputError: The transform says that the client is at fault.
            TransformFailedError: The transform raised, or its result does not fit `outputs`.
        """
        given = dict(outputs)
        if not self.postprocesses:
            return given
        result = self._call("postprocess", self.transform.postprocess, _own(given))
        texts = {spec.name for spec in self.outputs if spec.dtype == BYTES}
        result = {name: unify_texts(array) if name in texts else array for name, array in result.items()}
        batched = has_batch(self.signature)
        if found := _compare(result, self.outputs, batched, _count(given) if batched else None):
            message = "; ".join(f"{name!r}: {what}" for name, what, _ in found)
            raise TransformFailedError(f"{self.name}: postprocess: its result does not fit its outputs: {message}")
        return result

    def _call(self, method: str, function: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
        try:
            result: Any = function(arrays)
        except TransformInputError:
            raise
        except (Exception, SystemExit) as error:
            raise TransformFailedError(f"{self.name}: {method} failed with {type(error).__name__}") from error
        if not isinstance(result, Mapping):
            raise TransformFailedError(f"{self.name}: {method}: must return arrays by name, got {_name_type(result)}")
        for name, array in result.items():
            if not isinstance(name, str) or not isinstance(array, np.ndarray):
                found = f"{name!r}: {_name_type(array)}"
                raise TransformFailedError(f"{self.name}: {method}: must return NumPy arrays by name, got {found}")
        return dict(result)


def bind_transform(transform: Transform, signature: Signature, name: str) -> BoundTransform:
    """Check that a transform fits a model.

    Args:
        transform: The transform.
        signature: What the graph takes and gives.
        name: Where the transform came from.

    Raises:
        UserError: It does not fit; the message names the transform and the tensor.
    """
    batched = has_batch(signature)
    specs = {}
    for kind, describe in (("inputs", transform.describe_inputs), ("outputs", transform.describe_outputs)):
        try:
            found: Any = describe(signature)
        except UserError as error:
            raise UserError(f"{name}: {kind}: {error.message}", hint=error.hint) from error
        except (Exception, SystemExit) as error:
            raise UserError(f"{name}: describe_{kind} failed: {type(error).__name__}: {error}") from error
        specs[kind] = _check_specs(f"{name}: {kind}", found, batched)
    if not transform.preprocesses and specs["inputs"] != widen(signature.inputs, batched):
        raise UserError(f"{name}: inputs: differ from the model's, but nothing is done before the graph")
    if not transform.postprocesses and specs["outputs"] != widen(signature.outputs, batched):
        raise UserError(f"{name}: outputs: differ from the model's, but nothing is done after the graph")
    return BoundTransform(name, transform, specs["inputs"], specs["outputs"], signature)


def has_batch(signature: Signature) -> bool:
    """Say whether the first dimension of every input and output is the same, free or fixed: the rows of a request."""
    leading = {spec.shape[0] if spec.shape else 0 for spec in (*signature.inputs, *signature.outputs)}
    return len(leading) == 1 and 0 not in leading


def widen(specs: Sequence[TensorSpec], batched: bool) -> tuple[TensorSpec, ...]:
    """Return specs with any number of rows, if they have rows."""
    if not batched:
        return tuple(specs)
    return tuple(dataclasses.replace(spec, shape=(-1, *spec.shape[1:])) for spec in specs)


def unify_texts(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of texts or bytes, however NumPy holds them, as an array of `bytes` objects."""
    if array.dtype.kind not in "SUO":
        return array
    values = [value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()]
    return fill_objects(values).reshape(array.shape)


def _check_specs(where: str, specs: Any, batched: bool) -> tuple[TensorSpec, ...]:
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
        if any(not isinstance(size, int) or size < -1 for size in spec.shape) or (batched and not spec.shape):
            raise UserError(f"{where}: {spec.name!r}: shape must begin with -1, the rows, got {spec.shape}")
    return widen(specs, batched)


def _is_dtype(name: str) -> bool:
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return dtype.kind in "biufc" and dtype.name == name


def _compare(
    arrays: Arrays, specs: Sequence[TensorSpec], batched: bool, rows: int | None = None
) -> list[tuple[str, str, bool]]:
    """Return what is wrong: name, sentence, and whether nothing but the size of an inner dimension is."""
    expected = {spec.name: spec for spec in specs}
    found = [
        (name, f"missing, got {', '.join(map(repr, arrays)) or 'none'}", False)
        for name in expected
        if name not in arrays
    ]
    found += [
        (name, f"unknown, expected {', '.join(map(repr, expected))}", False) for name in arrays if name not in expected
    ]
    if found:
        return found
    for name, spec in expected.items():
        array = arrays[name]
        dtype = _find_dtype(array)
        if what := spec.describe_mismatch(dtype, array.shape):
            by_size = dtype == spec.dtype and array.ndim == len(spec.shape) and (not batched or len(array) > 0)
            found.append((name, what, by_size))
        elif batched and rows is not None and len(array) != rows:
            found.append((name, f"must have {rows} rows, as the request has, got {len(array)}", False))
    if not found and batched and rows is None and len(counts := {name: len(array) for name, array in arrays.items()}):
        first = next(iter(counts.values()))
        found = [
            (name, f"must have {first} rows, as {next(iter(counts))!r} has, got {count}", False)
            for name, count in counts.items()
            if count != first
        ]
    return found


def _find_dtype(array: NDArray[Any]) -> str:
    if array.dtype == object and all(isinstance(value, bytes) for value in array.flat):
        return BYTES
    return array.dtype.name


def _own(arrays: Arrays) -> Arrays:
    """Return arrays that may be changed in place: those that lie in a request's own bytes may not."""
    return {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}


def _is_open(spec: TensorSpec) -> bool:
    return spec.dtype == BYTES or -1 in spec.shape[1:]


def _count(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))


def _name_type(value: Any) -> str:
    return type(value).__name__
