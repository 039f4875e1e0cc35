"""A bundle's graph with an executor thread, alone or with preprocessing and postprocessing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.mindir.graph.execution import Graph
from kfp_mindspore.transform.load import load_transform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.mindir.graph.execution import RowShapes
    from kfp_mindspore.transform.bound import BoundTransform

    Arrays = dict[str, NDArray[Any]]


# Rows that are preprocessed at once.
_ROWS = 256


class GraphRunner:
    """A bundle's graph in a separate thread. Every method is thread-safe.

    Args:
        bundle: An opened bundle, or its directory.
        max_batch: Most rows per execution when the batch is free; larger requests are split.
        warm: Batch sizes to compile when loading and to pad to; default powers of two up to `max_batch`, or the fixed
            batch.
        key: Key for an encrypted MindIR (AES-GCM): 16, 24 or 32 bytes.

    Raises:
        UserError: The directory is no bundle, or MindSpore cannot load the model.
        MissingExtraError: MindSpore is not installed.
    """

    def __init__(
        self,
        bundle: ModelBundle | Path | str,
        *,
        max_batch: int = 64,
        warm: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, ModelBundle) else ModelBundle.open(bundle)
        self.signature = self.bundle.signature
        self._graph = Graph(self.bundle, max_batch=max_batch, warm=warm, key=key)
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix="graph")
        try:
            self._executor.submit(self._load).result()
        except BaseException:
            self.close()
            raise

    def submit(self, inputs: Mapping[str, NDArray[Any]]) -> Future[Arrays]:
        """Validate the inputs and queue the computation.

        Args:
            inputs: Arrays that fit the signature, with any row count.

        Returns:
            A future for the outputs by name, with as many rows as the inputs.

        Raises:
            ValidationError: The inputs do not fit the signature.
            KfpMindSporeError: The runner is closed.
        """
        self._graph.validate(inputs)
        self._graph.check_ranges(inputs)
        inner = self._graph.get_row_shapes(inputs)
        with self._lock:
            if self._executor is None:
                raise KfpMindSporeError(f"{self.bundle.path}: the runner is closed")
            return self._executor.submit(self._run, dict(inputs), inner)

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs; `submit` and wait."""
        return self.submit(inputs).result()

    def close(self) -> None:
        """Stop the thread when all queued requests are computed. Idempotent."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def __enter__(self) -> GraphRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> None:
        self._graph.load()
        self._graph.warm_all()

    def _run(self, inputs: Arrays, inner: RowShapes) -> Arrays:
        return self._graph.run([inputs], inner)[0]


class ModelRunner:
    """A bundle as the server runs it: preprocessing, graph, postprocessing. Every method is thread-safe.

    `transform` is the bundle's, bound to its signature, or None.

    Args:
        bundle: An opened bundle, or its directory.
        max_batch: Most rows per graph execution, if the bundle does not declare fewer; larger requests are split.
        warm: Batch sizes to compile when loading; default none.
        key: Key for an encrypted MindIR (AES-GCM): 16, 24 or 32 bytes.
        allow_code: Whether the bundle's `transform.py` may be run.

    Raises:
        UserError: The directory is no bundle, MindSpore cannot load the model, or it has code that is not allowed.
        CorruptBundleError: A file has another digest than signed.
        MissingExtraError: MindSpore or Pillow is not installed.
    """

    def __init__(
        self,
        bundle: ModelBundle | Path | str,
        *,
        max_batch: int = 64,
        warm: Sequence[int] = (),
        key: bytes | None = None,
        allow_code: bool = False,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, ModelBundle) else ModelBundle.open(bundle)
        self.transform = load_transform(self.bundle, allow_code=allow_code)
        most = int(self.bundle.signature.serving.get("max_batch", max_batch))
        self._runner = GraphRunner(self.bundle, max_batch=min(max_batch, most), warm=warm, key=key)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Specs for the rows that `predict` accepts."""
        signature = self.bundle.signature
        return signature.free_batch(signature.inputs) if self.transform is None else self.transform.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Specs for what `predict` returns."""
        signature = self.bundle.signature
        return signature.free_batch(signature.outputs) if self.transform is None else self.transform.outputs

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs for raw rows.

        Args:
            inputs: Arrays that fit `inputs`, with any row count; texts and files as arrays of `bytes` objects.

        Returns:
            Arrays that fit `outputs`, with as many rows.

        Raises:
            UserError: The rows do not fit `inputs`, or a step rejects them.
        """
        if self.transform is None:
            return self._runner.predict(inputs)
        count = min((len(array) for array in inputs.values()), default=0)
        rows = self.transform.transform.max_rows or _ROWS
        if not self.bundle.signature.batch_size or count <= rows:
            return self._predict(self.transform, inputs)
        parts = [
            self._predict(self.transform, {name: array[start : start + rows] for name, array in inputs.items()})
            for start in range(0, count, rows)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def adapt(self, parameters: Mapping[str, Any]) -> None:
        """Set a request's parameters for all further rows, such as a detector's `threshold`.

        Raises:
            UserError: A parameter has a wrong value.
        """
        if self.transform is not None:
            self.transform = self.transform.adapt(parameters)

    def close(self) -> None:
        """Release the graph. Idempotent."""
        self._runner.close()

    def __enter__(self) -> ModelRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _predict(self, transform: BoundTransform, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        return transform.run_postprocess(self._runner.predict(transform.run_preprocess(inputs, {})))
