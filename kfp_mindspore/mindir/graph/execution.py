"""A MindIR graph that validates, pads requests to compiled shapes, splits large ones and crops the outputs.

MindSpore's GraphCell crashes or hangs when two threads call it, does not enforce the shapes it was exported with, and
compiles anew (40 to 110 ms) for each new shape. A server runs all graphs in one thread; `GraphRunner` is a graph
with its own thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.compat.onednn import avoid_slow_convolutions, has_convolutions
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.bundle import ModelBundle, TensorSpec
from kfp_mindspore.formats.tensors import describe_unequal_rows, list_mismatches
from kfp_mindspore.mindir.environment import name_versions
from kfp_mindspore.mindir.graph.encryption import load_graph
from kfp_mindspore.mindir.graph.index_ranges import compute_index_ranges
from kfp_mindspore.mindir.graph.metadata import count_operators, read_proto

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]
    # Row shape by input, in order; requests with equal row shapes can share a batch.
    RowShapes = tuple[tuple[int, ...], ...]

# Row shape limit for models with free dimensions that are not padded: each compiled shape stays in memory.
MAX_SHAPES = 64
# MindSpore 2.9 maps its kernels' C++ errors to any of these types.
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
    """A bundle's graph. Call `load`, `warm`, `run` and `release` in one thread, the same for all graphs in a process.

    Args:
        bundle: An opened bundle.
        max_batch: Most rows per execution when the batch is free; larger requests are split.
        warm: Batch sizes to compile and to pad to; default powers of two up to `max_batch`, or the fixed batch.
        key: Key for an encrypted MindIR (AES-GCM): 16, 24 or 32 bytes.

    Raises:
        UserError: A batch size is below one.
    """

    def __init__(
        self, bundle: ModelBundle, *, max_batch: int = 64, warm: Sequence[int] | None = None, key: bytes | None = None
    ) -> None:
        self.bundle = bundle
        self.signature = bundle.signature
        self.batch = self.signature.batch_size
        # A fixed batch is filled by padding and splitting, so requests may have any row count.
        self.inputs = self.signature.free_batch(self.signature.inputs)
        if self.signature.rows is not None:
            self.inputs = self.signature.rows.name_columns(self.inputs)
        self.sizes = self._compute_sizes(max_batch, warm)
        for spec in self.inputs:
            _check_dtype(spec)
        self._dimensions = self.signature.dimensions
        self._ranges: Mapping[str, tuple[float, float]] = self.signature.ranges
        self._key = key
        self._compiled: CompiledGraph | None = None
        self._shapes: set[RowShapes] = set()
        self._outputs = [spec.name for spec in self.signature.outputs]

    @property
    def max_batch(self) -> int:
        """Most rows per execution; 0 when the model has no batch."""
        return self.sizes[-1] if self.sizes else 0

    @property
    def varies(self) -> bool:
        """Whether more than the batch is free, so that inputs which fit the signature may not fit the graph."""
        return any(size < 0 for spec in self.inputs for size in (spec.shape[1:] if self.batch else spec.shape))

    def validate(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Check names, dtypes, ranks and dimensions.

        Args:
            inputs: One array an input.

        Raises:
            ValidationError: Such as `input 'image': shape must be (-1, 1, 8, 8), got (3, 8, 8)`; all mistakes at once.
        """
        errors = [f"input {name!r}: {what}" for name, what in list_mismatches(self.inputs, inputs).items()]
        if not errors and self.batch and (unequal := describe_unequal_rows(inputs)):
            errors = [f"inputs: {unequal}"]
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
        """Return each input's row shape after padding.

        Args:
            inputs: Validated.

        Raises:
            ValidationError: A dimension is larger than the largest size, or differs between inputs that share it.
        """
        shapes = {spec.name: list(inputs[spec.name].shape) for spec in self.inputs}
        for dimension in self._dimensions:
            found = {name: shapes[name][axis] for name, axis in dimension.inputs.items()}
            length = max(found.values())
            if min(found.values()) != length:
                listed = ", ".join(f"{size} in {name!r}" for name, size in found.items())
                raise ValidationError([f"dimension {dimension.name!r}: must be the same in all inputs, got {listed}"])
            size = dimension.get_size(length)
            if size is None:
                raise ValidationError(
                    [f"dimension {dimension.name!r}: must be at most {dimension.sizes[-1]}, got {length}"]
                )
            for name, axis in dimension.inputs.items():
                shapes[name][axis] = size
        return self._drop_batch(shapes.values())

    def load(self) -> None:
        """Read the file, and derive the index ranges that the signature lacks from the graph.

        Raises:
            UserError: It is no MindIR that MindSpore can load, or the key is wrong.
            MissingExtraError: MindSpore is not installed.
        """
        self._inspect()
        self._compiled = CompiledGraph(load_graph(self.bundle, self._key))

    def _inspect(self) -> None:
        try:
            model = read_proto(self.bundle.mindir, key=self._key)
        except UserError:
            # MindSpore's own error follows.
            return
        if has_convolutions(count_operators(model)):
            avoid_slow_convolutions()
        names = {spec.name for spec in self.inputs}
        known = compute_index_ranges(model).known
        # The signature has precedence: its author may have named a range.
        self._ranges = {**{name: known[name] for name in known if name in names}, **self._ranges}

    def release(self) -> None:
        """Free the graph; MindSpore must free it in the thread that runs it."""
        self._compiled = None

    def is_sound(self) -> bool:
        """Return whether the graph computes zeros, as in `warm`: then a failed request was due to its values."""
        shapes = self.list_shapes()
        if not shapes:
            return False
        try:
            self._warm(shapes[0], self.sizes[0] if self.sizes else 0)
        except KERNEL_ERRORS:
            return False
        return True

    def list_shapes(self) -> list[RowShapes]:
        """Return the row shapes to compile before the first request: none when a free dimension is not padded."""
        shapes: list[RowShapes] = []
        for choice in itertools.product(*(dimension.sizes for dimension in self._dimensions)):
            sized = {spec.name: list(spec.shape) for spec in self.inputs}
            for dimension, size in zip(self._dimensions, choice, strict=True):
                for name, axis in dimension.inputs.items():
                    sized[name][axis] = size
            shapes.append(self._drop_batch(sized.values()))
        return [inner for inner in shapes if all(size >= 0 for shape in inner for size in shape)]

    def warm(self, inner: RowShapes, size: int) -> None:
        """Compile one shape.

        Args:
            inner: Each input's row shape.
            size: Rows; 0 when the model has no batch.

        Raises:
            UserError: MindSpore cannot compute it; the message names the exporter's version where it is another.
        """
        try:
            self._warm(inner, size)
            return
        except KERNEL_ERRORS as error:
            # Without the error itself: its traceback holds references to the cell, which another thread would free.
            message = str(error)
        subject = name_versions(self.signature.mindspore_version)
        raise UserError(f"{self.bundle.mindir}: {subject} cannot compute it: {message}")

    def _warm(self, inner: RowShapes, size: int) -> None:
        lead = (size,) if self.batch else ()
        self._compute(
            [
                np.zeros((*lead, *shape), np.dtype(spec.dtype))
                for spec, shape in zip(self.signature.inputs, inner, strict=True)
            ]
        )
        self._shapes.add(inner)

    def warm_all(self) -> int:
        """Compile every shape of `list_shapes` with every batch size; return how many."""
        known = [(inner, size) for inner in self.list_shapes() for size in self.sizes or (0,)]
        for inner, size in known:
            self.warm(inner, size)
        return len(known)

    def run(self, parts: Sequence[Mapping[str, NDArray[Any]]], inner: RowShapes) -> list[Arrays]:
        """Compute several requests in one execution.

        Args:
            parts: Each request's inputs, validated; more than one only when together they have at most `max_batch` rows
                and the model has a batch.
            inner: Their row shapes, equal for all, by `get_row_shapes`.

        Returns:
            Each request's outputs by name, with as many rows as its inputs had.

        Raises:
            ValidationError: Too many different shapes are compiled already.
            RuntimeError: The graph failed on the values; also other `KERNEL_ERRORS` types.
        """
        if inner not in self._shapes and len(self._shapes) >= MAX_SHAPES:
            raise ValidationError(
                [f"inputs: rows of shape {list(inner)} are a new shape, and {MAX_SHAPES} shapes are compiled already"],
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
        # The traceback holds references to the cell that `renew` frees.
        if self._compiled is not None:
            self._compiled.renew()
        raise failure

    def _run_parts(self, parts: Sequence[Mapping[str, NDArray[Any]]], inner: RowShapes) -> list[Arrays]:
        if not self.batch:
            (part,) = parts
            arrays = {name: array[np.newaxis] for name, array in part.items()}
            outputs = self._compute([array[0, ...] for array in self._stack([arrays], inner, 1)])
            return [self._crop(outputs, part)]
        counts = [len(part[self.inputs[0].name]) for part in parts]
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
        outputs = self._compute(self._stack(parts, inner, next(size for size in self.sizes if size >= total)))
        results: list[Arrays] = []
        start = 0
        for part, count in zip(parts, counts, strict=True):
            results.append(self._crop({name: array[start : start + count] for name, array in outputs.items()}, part))
            start += count
        return results

    def _compute_sizes(self, max_batch: int, warm: Sequence[int] | None) -> tuple[int, ...]:
        if not self.batch:
            return ()
        if self.batch > 0:
            return (self.batch,)
        if max_batch < 1 or any(size < 1 for size in warm or ()):
            raise UserError(f"max_batch and warm: must be at least 1, got {max_batch} and {list(warm or ())}")
        if warm is None:
            warm = [1 << power for power in range(max_batch.bit_length())]
        return tuple(sorted({size for size in warm if size < max_batch} | {max_batch}))

    def _drop_batch(self, shapes: Iterable[Sequence[int]]) -> RowShapes:
        return tuple(tuple(shape[1:] if self.batch else shape) for shape in shapes)

    def _stack(self, parts: Sequence[Mapping[str, NDArray[Any]]], inner: RowShapes, size: int) -> list[NDArray[Any]]:
        """Return each input as one array of `size` rows, padded; never a request's memory.

        The graph may return its inputs' memory as outputs.
        """
        stacked = []
        for spec, shape in zip(self.signature.inputs, inner, strict=True):
            arrays = [part[spec.name] for part in parts]
            rows = sum(map(len, arrays))
            if all(array.shape[1:] == shape for array in arrays):
                batch = np.empty((size, *shape), np.dtype(spec.dtype))
                np.concatenate(arrays, out=batch[:rows])
            else:
                fill = next(
                    (dimension.pad[spec.name] for dimension in self._dimensions if spec.name in dimension.pad), 0
                )
                batch = np.full((size, *shape), fill, np.dtype(spec.dtype))
                start = 0
                for array in arrays:
                    cells = (slice(start, start + len(array)), *(slice(length) for length in array.shape[1:]))
                    batch[cells] = array
                    start += len(array)
            # Repeat the last row: zeros could divide by zero.
            batch[rows:] = batch[rows - 1]
            stacked.append(batch)
        return stacked

    def _crop(self, outputs: Arrays, part: Mapping[str, NDArray[Any]]) -> Arrays:
        for dimension in self._dimensions:
            name, axis = next(iter(dimension.inputs.items()))
            length = part[name].shape[axis]
            for output, place in dimension.outputs.items():
                outputs[output] = outputs[output][(slice(None),) * place + (slice(length),)]
        return outputs

    def _compute(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        assert self._compiled is not None, "load was not called, or release was"
        return dict(zip(self._outputs, self._compiled.run(arrays), strict=True))


def _check_dtype(spec: TensorSpec) -> None:
    try:
        np.dtype(spec.dtype)
    except TypeError:
        raise UserError(
            f"input {spec.name!r}: dtype {spec.dtype} does not exist in NumPy",
            hint="Let the network take float32 and cast inside.",
        ) from None
