"""The one thread-safe way to run a MindIR graph.

MindSpore's GraphCell crashes or hangs when two threads call it, does not enforce the shapes it was exported with, and
compiles anew (40 to 110 ms) for each new shape. So one thread owns the graph, what is wrong is refused before it gets
there, and batches are padded to sizes that were compiled when the runner started.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.bundle import ModelBundle, Signature, TensorSpec
from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, UserError, ValidationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


class GraphRunner:
    """Runs a bundle's graph in a thread of its own; every method may be called from any thread.

    Args:
        bundle: A bundle that was opened, or its directory.
        max_batch: Most rows that are computed at once when the batch is free; larger ones are split.
        warm: Batch sizes to compile at the start and to pad to; default the powers of two up to `max_batch`, or the
            batch that the model was exported with.

    Raises:
        UserError: The bundle is none, or its file is no MindIR that MindSpore can load.
        MissingExtraError: MindSpore is not installed.
    """

    def __init__(
        self, bundle: ModelBundle | Path | str, *, max_batch: int = 64, warm: Sequence[int] | None = None
    ) -> None:
        self.bundle = bundle if isinstance(bundle, ModelBundle) else ModelBundle.open(bundle)
        self.signature = self.bundle.signature
        self.batch = find_batch(self.signature)
        self._expected = {spec.name: spec for spec in widen_inputs(self.signature)}
        self.sizes = self._choose_sizes(max_batch, warm)
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix="graph")
        self._cell: Any = None
        try:
            self._executor.submit(self._load).result()
        except BaseException:
            self.close()
            raise

    @property
    def max_batch(self) -> int:
        """Most rows that are computed at once; 0 when the model has no batch."""
        return self.sizes[-1] if self.sizes else 0

    def validate(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Check names, dtypes, ranks and dimensions.

        Args:
            inputs: One array an input.

        Raises:
            ValidationError: Such as `input 'image': shape must be (-1, 1, 8, 8), got (3, 8, 8)`; all mistakes at once.
        """
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
                if mismatch := spec.find_mismatch(array.dtype.name, array.shape):
                    errors.append(f"input {name!r}: {mismatch}")
                elif self.batch:
                    rows[name] = array.shape[0]
        if not errors and len(set(rows.values())) > 1:
            found = ", ".join(f"{count} in {name!r}" for name, count in rows.items())
            errors.append(f"inputs: must have the same number of rows, got {found}")
        if errors:
            raise ValidationError(errors)

    def submit(self, inputs: Mapping[str, NDArray[Any]]) -> Future[Arrays]:
        """Validate the inputs and queue the computation.

        Args:
            inputs: One array an input, as the signature says; the batch may have any number of rows.

        Returns:
            A future of the outputs by name, with as many rows as the inputs.

        Raises:
            ValidationError: The inputs do not fit the signature.
            KfpMindSporeError: The runner is closed.
        """
        self.validate(inputs)
        with self._lock:
            if self._executor is None:
                raise KfpMindSporeError(f"{self.bundle.path}: the runner is closed")
            return self._executor.submit(self._run, dict(inputs))

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Compute the outputs; as `submit`, but waits."""
        return self.submit(inputs).result()

    def close(self) -> None:
        """End the thread once what is queued is computed. Idempotent."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
            self._cell = None

    def __enter__(self) -> GraphRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _load(self) -> None:
        try:
            import mindspore
            from mindspore import nn
        except ModuleNotFoundError as error:
            if error.name != "mindspore":
                raise
            raise MissingExtraError("mindspore", "serving") from None
        try:
            self._cell = nn.GraphCell(mindspore.load(str(self.bundle.mindir)))
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{self.bundle.mindir}: MindSpore cannot load it: {error}") from error
        specs = self.signature.inputs
        if all(size > 0 for spec in specs for size in spec.shape[1:]):
            for size in self.sizes:
                self._compute({spec.name: np.zeros((size, *spec.shape[1:]), spec.dtype) for spec in specs})

    def _run(self, inputs: Arrays) -> Arrays:
        if not self.batch:
            return self._compute(inputs)
        rows = len(next(iter(inputs.values())))
        parts = []
        for start in range(0, rows, self.max_batch):
            part = {name: array[start : start + self.max_batch] for name, array in inputs.items()}
            count = min(rows - start, self.max_batch)
            size = next(size for size in self.sizes if size >= count)
            outputs = self._compute({name: _pad(array, size) for name, array in part.items()})
            parts.append({name: array[:count] for name, array in outputs.items()})
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _compute(self, inputs: Arrays) -> Arrays:
        from mindspore import Tensor

        cell_inputs = [Tensor(np.ascontiguousarray(inputs[spec.name])) for spec in self.signature.inputs]
        arrays = flatten_outputs(self._cell(*cell_inputs))
        names = [spec.name for spec in self.signature.outputs]
        return dict(zip(names, arrays, strict=True))


def find_batch(signature: Signature) -> int:
    """Return what the first dimension of every input and output is: -1 for a free batch, N for a fixed one, else 0."""
    leading = {spec.shape[0] if spec.shape else 0 for spec in (*signature.inputs, *signature.outputs)}
    return leading.pop() if len(leading) == 1 else 0


def widen_inputs(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return what a runner accepts: any number of rows, since a fixed batch is filled by padding and splitting."""
    if not find_batch(signature):
        return signature.inputs
    return tuple(TensorSpec(spec.name, spec.dtype, (-1, *spec.shape[1:])) for spec in signature.inputs)


def flatten_outputs(outputs: Any) -> list[NDArray[Any]]:
    """Return what a network gave, a tensor or nested tuples of them, as a flat list of arrays."""
    if isinstance(outputs, tuple | list):
        return [array for output in outputs for array in flatten_outputs(output)]
    array: NDArray[Any] = outputs.asnumpy()
    return [array]


def _pad(array: NDArray[Any], size: int) -> NDArray[Any]:
    count = len(array)
    if count == size:
        return array
    # The last row again: what was seen computes without surprises, zeros might divide by zero.
    padded = np.empty((size, *array.shape[1:]), array.dtype)
    padded[:count] = array
    padded[count:] = array[-1]
    return padded
