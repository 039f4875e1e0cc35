"""A MindIR graph that pads to shapes that are compiled already, splits and slices, for whoever owns a thread for it.

MindSpore's GraphCell crashes or hangs when two threads call it, does not enforce the shapes it was exported with, and
compiles anew (40 to 110 ms) for each new shape. A server has one thread for all its graphs; `GraphRunner` is a graph
with a thread of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.compat.onednn import avoid_slow_convolutions, has_convolutions
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.bundle import ModelBundle, Signature, TensorSpec
from kfp_mindspore.mindir.encryption import load_graph
from kfp_mindspore.mindir.metadata import inspect_mindir

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]
    # The shape of a row of each input, in their order: what can be computed together has the same.
    RowShapes = tuple[tuple[int, ...], ...]

# How many shapes of a row may be compiled for inputs that are free in more than their batch and name no sizes: a
# compiled shape stays in memory.
MAX_SHAPES = 64
# What MindSpore's operators raise: C++ errors come as whatever Python type their author chose.
KERNEL_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    NameError,
    OSError,
)


class Graph:
    """A bundle's graph. `load`, `warm` and `run` belong to one thread, the same for all graphs of a process.

    Args:
        bundle: A bundle that was opened.
        max_batch: Most rows that are computed at once when the batch is free; larger requests are split.
        warm: Batch sizes to compile and to pad to; default the powers of two up to `max_batch`, or the batch that the
            model was exported with.
        key: What an encrypted MindIR is decrypted with (AES-GCM): 16, 24 or 32 bytes.

    Raises:
        UserError: A batch size is below one.
    """

    def __init__(
        self, bundle: ModelBundle, *, max_batch: int = 64, warm: Sequence[int] | None = None, key: bytes | None = None
    ) -> None:
        self.bundle = bundle
        self.signature = bundle.signature
        self.batch = find_batch(self.signature)
        self.inputs = widen_inputs(self.signature)
        self.sizes = self._choose_sizes(max_batch, warm)
        self._expected = {spec.name: spec for spec in self.inputs}
        self._plain = [(spec.name, _parse_dtype(spec), spec.shape) for spec in self.inputs]
        self._dimensions = self.signature.dimensions
        self._ranges = self.signature.ranges
        self._key = key
        self._compiled: CompiledGraph | None = None
        self._shapes: set[RowShapes] = set()
        self._outputs = [spec.name for spec in self.signature.outputs]

    @property
    def max_batch(self) -> int:
        """Most rows that are computed at once; 0 when the model has no batch."""
        return self.sizes[-1] if self.sizes else 0

    @property
    def varies(self) -> bool:
        """Whether more than the batch is free, so that inputs which fit the signature may still not fit the graph."""
        return any(size < 0 for spec in self.inputs for size in (spec.shape[1:] if self.batch else spec.shape))

    def validate(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Check names, dtypes, ranks and dimensions.

        Args:
            inputs: One array an input.

        Raises:
            ValidationError: Such as `input 'image': shape must be (-1, 1, 8, 8), got (3, 8, 8)`; all mistakes at once.
        """
        if self._fits(inputs):
            return
        expected = self._expected
        errors = [
            f"input {name!r}: missing, got {', '.join(map(repr, inputs)) or 'none'}"
            for name in expected
            if name not in inputs
        ]
        errors += [
            f"input {name!r}: unknown, expected {', '.join(map(repr, expected))}"
            for name in inputs
            if name not in expected
        ]
        rows: dict[str, int] = {}
        for name, spec in expected.items():
            if name in inputs:
                array = inputs[name]
                if mismatch := spec.describe_mismatch(array.dtype.name, array.shape):
                    errors.append(f"input {name!r}: {mismatch}")
                elif self.batch:
                    rows[name] = array.shape[0]
        if not errors and len(set(rows.values())) > 1:
            found = ", ".join(f"{count} in {name!r}" for name, count in rows.items())
            errors.append(f"inputs: must have the same number of rows, got {found}")
        if errors:
            raise ValidationError(errors)

    def check_ranges(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Refuse values outside an input's range, on which the graph would raise after 3 s and need recompilation.

        Args:
            inputs: Validated.

        Raises:
            ValidationError: Such as `input 'ids': values must be 0 to 9, got 12`; all mistakes at once.
        """
        errors = []
        for name, (least, greatest) in self._ranges.items():
            array = inputs[name]
            if array.size == 0:
                continue
            found = next((value for value in (array.min(), array.max()) if value < least or value > greatest), None)
            if found is not None:
                errors.append(f"input {name!r}: values must be {least} to {greatest}, got {found}")
        if errors:
            raise ValidationError(errors)

    def get_row_shapes(self, inputs: Mapping[str, NDArray[Any]]) -> RowShapes:
        """Return the shape of a row of each input as it will be computed: free dimensions grown to a size of theirs.

        Args:
            inputs: Validated.

        Raises:
            ValidationError: A dimension is larger than the largest size, or differs between inputs that share it.
        """
        skip = 1 if self.batch else 0
        if not self._dimensions:
            return tuple(inputs[name].shape[skip:] for name in self._expected)
        shapes = {name: list(inputs[name].shape) for name in self._expected}
        for dimension in self._dimensions:
            found = {name: shapes[name][axis] for name, axis in dimension.inputs.items()}
            length = max(found.values())
            if min(found.values()) != length:
                listed = ", ".join(f"{size} in {name!r}" for name, size in found.items())
                raise ValidationError([f"dimension {dimension.name!r}: must be the same in all inputs, got {listed}"])
            size = next((size for size in dimension.sizes if size >= length), None)
            if size is None:
                raise ValidationError(
                    [f"dimension {dimension.name!r}: must be at most {dimension.sizes[-1]}, got {length}"]
                )
            for name, axis in dimension.inputs.items():
                shapes[name][axis] = size
        return tuple(tuple(shape[skip:]) for shape in shapes.values())

    def load(self) -> None:
        """Read the file.

        Raises:
            UserError: It is no MindIR that MindSpore can load, or the key is wrong.
            MissingExtraError: MindSpore is not installed.
        """
        self._choose_instructions()
        self._compiled = CompiledGraph(load_graph(self.bundle, self._key))

    def _choose_instructions(self) -> None:
        try:
            operators = inspect_mindir(self.bundle.mindir, key=self._key).operators
        except UserError:
            # What MindSpore says of such a file is what counts.
            return
        if has_convolutions(operators):
            avoid_slow_convolutions()

    def release(self) -> None:
        """Let the graph go; it must be in the graph's own thread that MindSpore frees it."""
        self._compiled = None

    def is_sound(self) -> bool:
        """Compute zeros, as `warm` did, and tell whether the graph can: what it refuses then is the values' fault."""
        shapes = self.list_shapes()
        if not shapes:
            return False
        try:
            self.warm(shapes[0], self.sizes[0] if self.sizes else 0)
        except KERNEL_ERRORS:
            return False
        return True

    def list_shapes(self) -> list[RowShapes]:
        """Return what to compile before the first request: none when a free dimension names no sizes."""
        skip = 1 if self.batch else 0
        shapes: list[RowShapes] = []
        for choice in itertools.product(*(dimension.sizes for dimension in self._dimensions)):
            sized = {spec.name: list(spec.shape) for spec in self.inputs}
            for dimension, size in zip(self._dimensions, choice, strict=True):
                for name, axis in dimension.inputs.items():
                    sized[name][axis] = size
            shapes.append(tuple(tuple(shape[skip:]) for shape in sized.values()))
        return [inner for inner in shapes if all(size >= 0 for shape in inner for size in shape)]

    def warm(self, inner: RowShapes, size: int) -> None:
        """Compile one shape.

        Args:
            inner: The shape of a row of each input.
            size: Rows; 0 when the model has no batch.
        """
        lead = (size,) if self.batch else ()
        self._compute(
            [
                np.zeros((*lead, *shape), np.dtype(spec.dtype))
                for spec, shape in zip(self.signature.inputs, inner, strict=True)
            ]
        )
        self._shapes.add(inner)

    def warm_all(self) -> int:
        """Compile every shape that is known beforehand; return how many."""
        known = [(inner, size) for inner in self.list_shapes() for size in self.sizes or (0,)]
        for inner, size in known:
            self.warm(inner, size)
        return len(known)

    def run(self, parts: Sequence[Mapping[str, NDArray[Any]]], inner: RowShapes) -> list[Arrays]:
        """Compute several requests at once.

        Args:
            parts: The inputs of each request, validated; more than one only when together they have at most
                `max_batch` rows and the model has a batch.
            inner: What `get_row_shapes` says of each of them.

        Returns:
            The outputs of each request by name, with as many rows as its inputs had.

        Raises:
            ValidationError: Too many different shapes were asked for.
            RuntimeError: The graph refused the values; also others of `KERNEL_ERRORS`.
        """
        if inner not in self._shapes and len(self._shapes) >= MAX_SHAPES:
            raise ValidationError(
                [f"inputs: rows of shape {list(inner)} are one shape too many; {MAX_SHAPES} are compiled already"],
                hint="Export the model with the sizes that its free dimensions may have.",
            )
        try:
            results = self._run_parts(parts, inner)
        except KERNEL_ERRORS as error:
            failure = error.with_traceback(None)
            failure.__cause__ = failure.__context__ = None
        else:
            self._shapes.add(inner)
            return results
        # The traceback would hold what is freed here.
        if self._compiled is not None:
            self._compiled.renew()
        raise failure

    def _run_parts(self, parts: Sequence[Mapping[str, NDArray[Any]]], inner: RowShapes) -> list[Arrays]:
        if not self.batch:
            return [self._crop(self._compute(self._grow(part, inner)), part) for part in parts]
        first = next(iter(self._expected))
        counts = [len(part[first]) for part in parts]
        total = sum(counts)
        if total > self.max_batch:
            (part,) = parts
            pieces = [
                self._run_parts([{name: array[start : start + self.max_batch] for name, array in part.items()}], inner)[
                    0
                ]
                for start in range(0, total, self.max_batch)
            ]
            return [{name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}]
        size = next(size for size in self.sizes if size >= total)
        outputs = self._compute(
            [
                self._stack(spec, [part[spec.name] for part in parts], (size, *shape), total)
                for spec, shape in zip(self.signature.inputs, inner, strict=True)
            ]
        )
        results: list[Arrays] = []
        start = 0
        if not self._dimensions and len(outputs) == 1:
            # What most models are.
            ((name, array),) = outputs.items()
            for count in counts:
                results.append({name: array[start : start + count]})
                start += count
            return results
        for part, count in zip(parts, counts, strict=True):
            results.append(self._crop({name: array[start : start + count] for name, array in outputs.items()}, part))
            start += count
        return results

    def _fits(self, inputs: Mapping[str, NDArray[Any]]) -> bool:
        """Say quickly whether nothing is wrong."""
        if len(inputs) != len(self._plain):
            return False
        rows = set()
        for name, dtype, shape in self._plain:
            array = inputs.get(name)
            if array is None or array.dtype != dtype or len(array.shape) != len(shape):
                return False
            for size, wanted in zip(array.shape, shape, strict=True):
                if size != wanted and (wanted != -1 or size <= 0):
                    return False
            rows.add(array.shape[0] if self.batch else 0)
        return len(rows) == 1

    def _choose_sizes(self, max_batch: int, warm: Sequence[int] | None) -> tuple[int, ...]:
        if not self.batch:
            return ()
        if self.batch > 0:
            return (self.batch,)
        if max_batch < 1 or any(size < 1 for size in warm or ()):
            raise UserError(f"max_batch and warm: must be at least 1, got {max_batch} and {list(warm or ())}")
        if warm is None:
            warm = [1 << power for power in range(max_batch.bit_length())]
        return tuple(sorted({size for size in warm if size < max_batch} | {max_batch}))

    def _find_filler(self, name: str) -> float | int:
        return next((dimension.pad[name] for dimension in self._dimensions if name in dimension.pad), 0)

    def _grow(self, part: Mapping[str, NDArray[Any]], inner: RowShapes) -> list[NDArray[Any]]:
        grown = []
        for spec, shape in zip(self.signature.inputs, inner, strict=True):
            array = part[spec.name]
            if array.shape == shape:
                array = np.array(array)
            else:
                wide = np.full(shape, self._find_filler(spec.name), array.dtype)
                wide[tuple(slice(size) for size in array.shape)] = array
                array = wide
            grown.append(array)
        return grown

    def _stack(
        self, spec: TensorSpec, arrays: Sequence[NDArray[Any]], shape: tuple[int, ...], total: int
    ) -> NDArray[Any]:
        if len(arrays) == 1 and arrays[0].shape == shape:
            # A copy, as the graph may answer with the memory of what it was given.
            return np.array(arrays[0])
        if all(array.shape[1:] == shape[1:] for array in arrays):
            stacked = np.empty(shape, np.dtype(spec.dtype))
            np.concatenate(arrays, out=stacked[:total])
        else:
            stacked = np.full(shape, self._find_filler(spec.name), np.dtype(spec.dtype))
            start = 0
            for array in arrays:
                place = (slice(start, start + len(array)), *(slice(size) for size in array.shape[1:]))
                stacked[place] = array
                start += len(array)
        # The last row again: what was seen computes without surprises, zeros might divide by zero.
        stacked[total:] = stacked[total - 1]
        return stacked

    def _crop(self, outputs: Arrays, part: Mapping[str, NDArray[Any]]) -> Arrays:
        for dimension in self._dimensions:
            name, axis = next(iter(dimension.inputs.items()))
            length = part[name].shape[axis]
            for output, place in dimension.outputs.items():
                outputs[output] = outputs[output][(slice(None),) * place + (slice(length),)]
        return outputs

    def _compute(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        assert self._compiled is not None, "load comes first, and release last"
        return dict(zip(self._outputs, self._compiled.run(arrays), strict=True))


def find_batch(signature: Signature) -> int:
    """Return what the first dimension of every input and output is: -1 for a free batch, N for a fixed one, else 0."""
    leading = {spec.shape[0] if spec.shape else 0 for spec in (*signature.inputs, *signature.outputs)}
    return leading.pop() if len(leading) == 1 else 0


def widen_inputs(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return what a runner accepts: any number of rows, since a fixed batch is filled by padding and splitting."""
    if not find_batch(signature):
        return signature.inputs
    return tuple(dataclasses.replace(spec, shape=(-1, *spec.shape[1:])) for spec in signature.inputs)


def _parse_dtype(spec: TensorSpec) -> np.dtype[Any]:
    try:
        return np.dtype(spec.dtype)
    except TypeError:
        raise UserError(
            f"input {spec.name!r}: dtype {spec.dtype} is none that NumPy has",
            hint="Let the network take float32 and cast inside.",
        ) from None
