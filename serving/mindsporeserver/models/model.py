"""A served model: one bundle, loaded and warm."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle, Signature, TensorSpec
from kfp_mindspore.formats.rows import fits
from kfp_mindspore.mindir.graph.execution import Graph
from kfp_mindspore.transform.base import TransformFailedError, TransformInputError
from kfp_mindspore.transform.bound import BoundTransform
from kfp_mindspore.transform.load import load_transform
from mindsporeserver.errors import GraphError, InvalidRequestError, NotReadyError, OverloadedError, RequestError
from mindsporeserver.models.batcher import Batcher, Limits, Ticket
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.served_model import NO_PARAMETERS, TensorModel
from mindsporeserver.models.transform_executor import TransformExecutor, TransformTimeoutError
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.protocols.rows import RowReader
from mindsporeserver.protocols.tensors import InputReader, describe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)

PLATFORM = "mindspore_mindir"
# Elements in a request whose light transform runs in the event loop: about 50 µs, less than a thread's start.
_LIGHT_ELEMENTS = 1 << 14


class BundleReplacedError(UserError):
    """The bundle was replaced between digest verification and the load's end."""


@dataclass(frozen=True)
class ModelSettings:
    """Settings for all models on a server.

    Args:
        max_batch: Most rows per batch.
        limits: Queue limits.
        finite: Whether NaN and infinities are refused.
        allow_code: Whether a bundle's `transform.py` may be run.
        key: Decrypts encrypted models: 16, 24 or 32 bytes.
    """

    max_batch: int = 64
    limits: Limits = field(default_factory=Limits)
    finite: bool = True
    allow_code: bool = False
    key: bytes | None = field(default=None, repr=False)


class MindSporeModel(TensorModel):
    """Serves one bundle. It is loaded once: another bundle under the same name is another object.

    Args:
        name: Name in the URL.
        bundle: An opened bundle, or the directory.
        version: Version in the URL.
        settings: See `ModelSettings`.
        executor: The process' inference executor; the default, a new one, is right for a single model only.
        metrics: The process' metrics; default new ones.
        transforms: The process' transform executor; default a new one, without a timeout.

    Raises:
        UserError: The directory holds no bundle.
    """

    def __init__(
        self,
        name: str,
        bundle: ModelBundle | Path | str,
        *,
        version: str = "1",
        settings: ModelSettings | None = None,
        executor: InferenceExecutor | None = None,
        metrics: ServerMetrics | None = None,
        transforms: TransformExecutor | None = None,
    ) -> None:
        bundle = bundle if isinstance(bundle, ModelBundle) else ModelBundle.open(bundle, verify=False)
        super().__init__(name, bundle, version, (metrics or ServerMetrics()).for_model(name))
        self.settings = _adapt(settings or ModelSettings(), self.bundle.signature)
        self.max_batch = self.settings.max_batch
        self._executor = executor or InferenceExecutor()
        self._transforms = transforms or TransformExecutor(os.cpu_count() or 1)
        self._graph = Graph(self.bundle, max_batch=self.settings.max_batch, key=self.settings.key)
        self._batcher = Batcher(self._graph, self._executor, self.settings.limits, self.metrics)
        self._transform: BoundTransform | None = None
        self._transforming = 0
        self._identity: tuple[int, ...] = ()
        self.readers: Mapping[str, InputReader] = {}
        self.rows: RowReader | None = None
        self.output_names: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Specs for the tensors that clients send."""
        return self._transform.inputs if self._transform is not None else self._graph.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensor specs in responses."""
        return self._transform.outputs if self._transform is not None else self.bundle.signature.outputs

    def load(self) -> bool:
        """Verify the digests, load the graph and compile the shapes; return when the model is ready.

        Raises:
            UserError: The bundle is damaged, cannot be loaded, or has code that is not allowed.
        """
        self._read()
        for step in self._list_steps():
            self._executor.call(step).result()
        self._finish()
        return True

    async def open(self) -> None:
        """Load as `load` does, without blocking the event loop; other models compute between two shapes."""
        start = time.perf_counter()
        await asyncio.to_thread(self._read)
        for step in self._list_steps():
            await asyncio.wrap_future(self._executor.call(step))
        self._finish()
        seconds, sizes = time.perf_counter() - start, self._graph.sizes
        logger.info("model %s version %s: ready in %.2f s, batch sizes %s", self.name, self.version, seconds, sizes)

    async def close(self) -> None:
        """Return when admitted requests are answered, and release the graph."""
        self.ready = False
        await self.requests.wait_idle()
        # MindSpore crashes when a graph is freed while another thread computes.
        self._executor.call(self._graph.release)

    def admit(self) -> AbstractContextManager[None]:
        """Refuse a request before the body is read if no request can be accepted.

        Returns:
            The context in which the request is read, transformed and computed: `close` waits for the end.

        Raises:
            NotReadyError: The model is loading or unloaded.
            OverloadedError: The queue is full.
        """
        if not self.ready:
            raise NotReadyError(self.name)
        self._batcher.admit()
        return self.requests

    def expire(self) -> None:
        """Refuse queued requests whose deadline has passed."""
        self._batcher.expire()

    async def infer(
        self, inputs: Arrays, *, deadline: float | None = None, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> tuple[Arrays, Ticket]:
        """Compute a request's outputs; when cancelled, it leaves the queue at once.

        Args:
            inputs: Arrays by name, read by `readers`.
            deadline: `time.monotonic()` after which the request is refused.
            parameters: The request's, for the transform; unknown ones are ignored.

        Returns:
            Outputs by name, and the ticket with the times in the queue and in computation.

        Raises:
            RequestError: See the subclasses.
        """
        transform = self._transform
        unknown: dict[str, int] = {}
        if transform is None:
            ticket = self._batcher.submit(inputs, deadline=deadline)
            return await ticket.future, ticket
        if parameters:
            try:
                transform = transform.adapt(parameters)
            except (TransformInputError, TransformFailedError) as error:
                raise self._translate(error) from None
        if transform.preprocesses:
            if "preprocess" in transform.light and _is_small(inputs):
                inputs = self._run_light(transform.run_light_preprocess, inputs, unknown)
            else:
                inputs = await self._run_transform(transform.run_preprocess, inputs, unknown)
        ticket = self._batcher.submit(inputs, deadline=deadline)
        if unknown:
            ticket.unknown = unknown
            self.metrics.count_unknown_categories(unknown)
        outputs = await ticket.future
        if transform.postprocesses:
            if "postprocess" in transform.light and _is_small(outputs):
                return self._run_light(transform.run_light_postprocess, outputs), ticket
            outputs = await self._run_transform(transform.run_postprocess, outputs)
        return outputs, ticket

    def describe(self) -> dict[str, Any]:
        """Return the model's V2 metadata, with `rows` beside the protocol's fields for a table's model."""
        described = {
            "name": self.name,
            "versions": [self.version],
            "platform": PLATFORM,
            "inputs": describe(self.inputs),
            "outputs": describe(self.outputs),
        }
        return described if self.rows is None else {**described, "rows": self.rows.layout.to_dict()}

    def _run_light(self, function: Callable[..., Arrays], *arguments: Any) -> Arrays:
        """Run a light method in the event loop, where a small request takes less time than starting a thread."""
        try:
            return function(*arguments)
        except (TransformInputError, TransformFailedError) as error:
            raise self._translate(error) from None

    async def _run_transform(self, function: Callable[..., Arrays], *arguments: Any) -> Arrays:
        limit = self.settings.limits.max_queue
        if self._transforming >= limit:
            raise OverloadedError(self._transforming, limit)
        if self._transforms.exhausted:
            raise NotReadyError(self.name)
        self._transforming += 1
        try:
            outputs: Arrays = await self._transforms.run(function, *arguments)
            return outputs
        except TransformTimeoutError:
            seconds = self._transforms.seconds
            logger.error(
                "model %s: %s did not return in %g s; its thread is abandoned", self.name, function.__name__, seconds
            )
            raise GraphError(f"its transform did not return in {seconds:g} s") from None
        except (TransformInputError, TransformFailedError) as error:
            raise self._translate(error) from None
        finally:
            self._transforming -= 1

    def _translate(self, error: TransformInputError | TransformFailedError) -> RequestError:
        if isinstance(error, TransformInputError):
            return InvalidRequestError(error.message)
        logger.error("model %s: %s", self.name, error, exc_info=error)
        return GraphError(error.message)

    def _read(self) -> None:
        self._identity = _identify(self.bundle.mindir)
        self.bundle.verify()
        if self.bundle.signature.encryption and self.settings.key is None:
            raise UserError(
                f"{self.bundle.path}: the model is encrypted and no key was given",
                hint="Name a file with the key by --model_key_file, or set MINDSPORE_MODEL_KEY.",
            )
        self._transform = load_transform(self.bundle, allow_code=self.settings.allow_code)

    def _list_steps(self) -> Iterator[Callable[[], None]]:
        graph = self._graph
        yield graph.load
        for row_shapes in graph.list_shapes():
            for size in graph.sizes or (0,):
                yield functools.partial(graph.warm, row_shapes, size)

    def _finish(self) -> None:
        if _identify(self.bundle.mindir) != self._identity:
            raise BundleReplacedError(f"{self.bundle.path}: was replaced during its load")
        self.readers = {spec.name: InputReader(spec, finite=self.settings.finite) for spec in self.inputs}
        if (layout := self.bundle.signature.rows) is not None and fits(layout, self.inputs):
            self.rows = RowReader(layout, finite=self.settings.finite)
        self.output_names = tuple(spec.name for spec in self.outputs)
        self.metrics.set_warm_shapes(len(self._graph.list_shapes()) * max(1, len(self._graph.sizes)))
        self.metrics.set_model_bytes(sum(int(entry["size"]) for entry in self.bundle.signature.files.values()))
        self.ready = True


def _adapt(settings: ModelSettings, signature: Signature) -> ModelSettings:
    """Return the settings with the signature metadata's settings, which have precedence."""
    own = signature.serving
    if not own:
        return settings
    limits = settings.limits
    return replace(
        settings,
        max_batch=int(own.get("max_batch", settings.max_batch)),
        limits=Limits(
            max_queue=int(own.get("max_queue", limits.max_queue)),
            max_delay_seconds=own["max_delay_ms"] / 1000 if "max_delay_ms" in own else limits.max_delay_seconds,
        ),
    )


def _is_small(arrays: Arrays) -> bool:
    return sum(array.size for array in arrays.values()) <= _LIGHT_ELEMENTS


def _identify(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
