"""What HTTP and gRPC share: the models, whether the server is alive, ready and draining, and its metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from mindsporeserver.errors import FixedModelsError

if TYPE_CHECKING:
    from mindsporeserver.models.inference_executor import InferenceExecutor
    from mindsporeserver.models.repository import Repository
    from mindsporeserver.observability.metrics import Metrics
    from mindsporeserver.telemetry import Telemetry

NAME = "mindsporeserver"
# The last one is kserve's name of the model repository extension.
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_repository_extension")


class ServerState:
    """One process' state.

    Args:
        repository: The models.
        graphs: The thread that computes.
        metrics: The process' metrics.
        telemetry: Records requests.
        is_fixed: Whether clients may not load and unload models: other processes serve the same ones.
    """

    def __init__(
        self,
        repository: Repository,
        graphs: InferenceExecutor,
        metrics: Metrics,
        telemetry: Telemetry,
        *,
        is_fixed: bool = False,
    ) -> None:
        self.repository = repository
        self.metrics = metrics
        self.telemetry = telemetry
        self.is_draining = False
        self._graphs = graphs
        self._is_fixed = is_fixed

    def is_alive(self) -> bool:
        """Return whether the graph thread runs; without it every request would wait for ever."""
        return self._graphs.is_alive()

    def is_ready(self) -> bool:
        """Return whether the models of the start are loaded and warm, and the server is not shutting down."""
        return self.repository.loaded and not self.is_draining

    def close(self) -> None:
        """End the graph thread and send the last spans; to be called when nothing is served any more."""
        self._graphs.close()
        self.telemetry.close()

    def describe(self) -> dict[str, Any]:
        """Return V2's metadata of the server."""
        return {"name": NAME, "version": get_version(), "extensions": list(EXTENSIONS)}

    def describe_model(self, name: str, version: str = "") -> dict[str, Any]:
        """Return V2's metadata of a model, or of one version of it.

        Raises:
            UnknownModelError: It is not served.
            NotReadyError: It is being loaded.
        """
        description = self.repository.get_model(name, version).describe()
        if not version:
            description["versions"] = self.repository.list_versions(name)
        return description

    async def load(self, name: str) -> None:
        """Load a model, or load it again.

        Raises:
            FixedModelsError: The models of this server are fixed.
            KfpMindSporeError: It cannot be loaded.
        """
        self._require_changeable()
        await self.repository.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model.

        Raises:
            FixedModelsError: The models of this server are fixed.
            NotFoundError: It is not served.
        """
        self._require_changeable()
        await self.repository.unload(name)

    def _require_changeable(self) -> None:
        if self._is_fixed:
            raise FixedModelsError


def get_version() -> str:
    """Return the version of this package; empty when it is not installed."""
    try:
        return version("kfp-mindspore")
    except PackageNotFoundError:
        return ""


def read_deadline(started: float, limit: float, expected: bytes | None) -> float | None:
    """Return the `time.monotonic()` until which a request may wait for the graph, or None.

    Args:
        started: When the request arrived.
        limit: The server's own limit in seconds; 0 for none.
        expected: The client's limit in milliseconds as it was sent; 0 or text that is no number is none, and does not
            lift the server's.
    """
    if expected is not None and expected.isdigit() and len(expected) < 12 and (milliseconds := int(expected)):
        limit = min(limit, milliseconds / 1000) if limit > 0 else milliseconds / 1000
    return started + limit if limit > 0 else None
