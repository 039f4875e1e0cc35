"""A bundle's graph with an executor thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.mindir.graph import RowShapes

    Arrays = dict[str, NDArray[Any]]


class GraphRunner:
    """A bundle's graph in a thread of its own. Every method is thread-safe.

    Args:
        bundle: An opened bundle, or its directory.
        max_batch: Most rows per execution when the batch is free; larger requests are split.
        warm: Batch sizes to compile when loading and to pad to; default the powers of two up to `max_batch`, or the
            fixed batch.
        key: Key of an encrypted MindIR (AES-GCM): 16, 24 or 32 bytes.

    Raises:
        UserError: The directory is no bundle, or MindSpore cannot load its model.
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
            inputs: Arrays that fit the signature, with any number of rows.

        Returns:
            A future of the outputs by name, with as many rows as the inputs.

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
