"""State shared by HTTP and gRPC: models, liveness, readiness, draining and metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

from kfp_mindspore.compat.mindspore_import import get_device
from mindsporeserver.errors import FixedModelsError

if TYPE_CHECKING:
    from mindsporeserver.models.inference_executor import InferenceExecutor
    from mindsporeserver.models.repository import Repository
    from mindsporeserver.observability.metrics import ServerMetrics
    from mindsporeserver.request_log.event_log import EventLog
    from mindsporeserver.telemetry import Telemetry

Result = TypeVar("Result")
NAME = "mindsporeserver"
# The last one is kserve's name for the model repository extension.
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_repository_extension")


class ServerState:
    """A server process's state.

    Args:
        repository: The served models.
        graphs: The graphs' executor thread.
        metrics: Process metrics.
        telemetry: Records requests.
        aliases: Further names of models and adapters in the OpenAI protocol.
        log: Log of requests and responses; None for none.
        is_fixed: Whether load and unload are refused because other processes serve the same models.
    """

    def __init__(
        self,
        repository: Repository,
        graphs: InferenceExecutor,
        metrics: ServerMetrics,
        telemetry: Telemetry,
        *,
        aliases: Mapping[str, str] | None = None,
        log: EventLog | None = None,
        is_fixed: bool = False,
    ) -> None:
        self.repository = repository
        self.metrics = metrics
        self.telemetry = telemetry
        self.aliases = aliases or {}
        self.log = log
        self.is_draining = False
        self._graphs = graphs
        self._is_fixed = is_fixed

    def is_alive(self) -> bool:
        """Return whether the executor thread runs; without it no request is answered."""
        return self._graphs.is_alive()

    def is_ready(self) -> bool:
        """Return whether the initial models are loaded and warm, and the server is not draining."""
        return self.repository.loaded and not self.is_draining

    async def call(self, function: Callable[[], Result]) -> Result:
        """Return a function's result in the executor thread, after the batches that are queued."""
        return await asyncio.wrap_future(self._graphs.call(function))

    def close(self) -> None:
        """Stop the executor thread, and write the last events and spans; call it after the last response."""
        self._graphs.close()
        if self.log is not None:
            self.log.close()
        self.telemetry.close()

    def describe(self) -> dict[str, Any]:
        """Return V2's server metadata."""
        return {"name": NAME, "version": get_version(), "extensions": list(EXTENSIONS)}

    def describe_model(self, name: str, version: str = "") -> dict[str, Any]:
        """Return V2's metadata for a model or model version.

        Raises:
            UnknownModelError: It is not served.
            NotReadyError: It is being loaded.
        """
        description = self.repository.get_model(name, version).describe()
        description["parameters"] = {"device": get_device()}
        if not version:
            description["versions"] = self.repository.list_versions(name)
        return description

    async def load(self, name: str) -> None:
        """Load or reload a model.

        Raises:
            FixedModelsError: This server's models are fixed.
            KfpMindSporeError: It cannot be loaded.
        """
        self.require_changeable()
        await self.repository.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model.

        Raises:
            FixedModelsError: This server's models are fixed.
            NotFoundError: It is not served.
        """
        self.require_changeable()
        await self.repository.unload(name)

    def require_changeable(self) -> None:
        """Refuse a change that would reach one of several processes only.

        Raises:
            FixedModelsError: This server's models are fixed.
        """
        if self._is_fixed:
            raise FixedModelsError


def get_version() -> str:
    """Return this package's version; empty when it is not installed."""
    try:
        return version("kfp-mindspore")
    except PackageNotFoundError:
        return ""


def read_deadline(started: float, limit: float, expected: bytes | None) -> float | None:
    """Return a request's deadline as `time.monotonic()`; None without a deadline.

    Args:
        started: The request's arrival.
        limit: Server timeout in seconds; 0 for none.
        expected: Client timeout in milliseconds; 0 or an invalid number is ignored.
    """
    if expected is not None and expected.isdigit() and len(expected) < 12 and (milliseconds := int(expected)):
        limit = min(limit, milliseconds / 1000) if limit > 0 else milliseconds / 1000
    return started + limit if limit > 0 else None
