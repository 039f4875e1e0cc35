"""The common base of served models: graphs and language models."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kfp_mindspore.formats.bundle import ModelBundle
from mindsporeserver.observability.metrics import ModelMetrics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mindsporeserver.models.batcher import Ticket
    from mindsporeserver.protocols.rows import RowReader
    from mindsporeserver.protocols.tensors import InputReader

    Arrays = dict[str, NDArray[Any]]


NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


class RequestCounter:
    """Requests in progress, each counted by a `with` block."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *error: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._count

    async def wait_idle(self) -> None:
        """Return when no request is in progress."""
        await self._idle.wait()


class ServedModel(abc.ABC):
    """Serves one bundle. It is loaded once: another bundle under the same name is another object.

    Args:
        name: Name in the URL or in requests.
        bundle: An opened bundle.
        version: Version in the URL.
        metrics: The model's metrics.
    """

    def __init__(self, name: str, bundle: ModelBundle, version: str, metrics: ModelMetrics) -> None:
        self.name = name
        self.bundle = bundle
        self.version = version
        self.metrics = metrics
        self.ready = False
        self.requests = RequestCounter()

    @abc.abstractmethod
    async def open(self) -> None:
        """Load and warm the model without blocking the event loop.

        Raises:
            UserError: The bundle is damaged or cannot be loaded.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Return when admitted requests are answered, and release the model."""

    @abc.abstractmethod
    def expire(self) -> None:
        """Refuse queued requests whose deadline has passed."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the model's V2 metadata."""


class TensorModel(ServedModel):
    """A model that is served by V2: a graph, or a language model's second stage.

    Attributes:
        readers: By input name.
        rows: Reads a table's columns; None for other models.
        output_names: In responses.
        max_batch: Most rows computed together.
    """

    readers: Mapping[str, InputReader]
    rows: RowReader | None
    output_names: tuple[str, ...]
    max_batch: int

    @abc.abstractmethod
    def admit(self) -> AbstractContextManager[None]:
        """Return the context of a request, which `close` waits for.

        Raises:
            RequestError: No request can be accepted.
        """

    @abc.abstractmethod
    async def infer(
        self, inputs: Arrays, *, deadline: float | None = None, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> tuple[Arrays, Ticket | None]:
        """Compute a request's outputs.

        Args:
            inputs: Arrays by name, read by `readers`.
            deadline: `time.monotonic()` after which the request is refused.
            parameters: The request's, for the transform; unknown ones are ignored.

        Returns:
            Outputs by name, and the ticket with the times in the queue and in computation, if there is one.

        Raises:
            RequestError: See the subclasses.
        """
