"""Model bundles as Ray Serve deployments, with the model server's protocols and executor."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import serve

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.formats.bundle import ModelBundle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mindsporeserver.app import Application

    Arrays = dict[str, NDArray[Any]]
    Message = MutableMapping[str, Any]


@dataclass(frozen=True)
class DeploymentSettings:
    """What a replica serves.

    Args:
        path: The bundle's directory, which each node has under this path.
        name: Model name in URLs.
        max_batch: Most rows in an execution; larger requests are split.
        max_queue: Rows that are accepted and not yet answered; further requests are refused.
        batch_wait_seconds: How long a batch of handle calls is delayed to fill it.
        allow_code: Whether the bundle's `transform.py` may be run.
        key: Decrypts an encrypted model: 16, 24 or 32 bytes.
    """

    path: str
    name: str
    max_batch: int = 64
    max_queue: int = 1024
    batch_wait_seconds: float = 0.0
    allow_code: bool = False
    key: bytes | None = field(default=None, repr=False)


class ModelDeployment:
    """A replica: HTTP as mindsporeserver answers it, and `predict` for the handles of other deployments.

    Args:
        settings: See `DeploymentSettings`.
    """

    def __init__(self, settings: DeploymentSettings) -> None:
        from mindsporeserver.app import Application
        from mindsporeserver.bodies import RequestLimits
        from mindsporeserver.models.batcher import Limits
        from mindsporeserver.models.inference_executor import InferenceExecutor
        from mindsporeserver.models.model import MindSporeModel, ModelSettings
        from mindsporeserver.models.repository import Repository, Sources
        from mindsporeserver.models.transform_executor import TransformExecutor
        from mindsporeserver.observability.logs import RequestLog
        from mindsporeserver.observability.metrics import ServerMetrics
        from mindsporeserver.state import ServerState
        from mindsporeserver.telemetry import Telemetry

        metrics, graphs = ServerMetrics(), InferenceExecutor()
        transforms = TransformExecutor(os.cpu_count() or 1)
        own = ModelSettings(
            max_batch=settings.max_batch,
            limits=Limits(max_queue=settings.max_queue),
            allow_code=settings.allow_code,
            key=settings.key,
        )

        def open_model(name: str, bundle: ModelBundle, version: str) -> MindSporeModel:
            return MindSporeModel(
                name, bundle, version=version, settings=own, executor=graphs, metrics=metrics, transforms=transforms
            )

        repository = Repository(Sources({settings.name: Path(settings.path)}), open_model, metrics)
        self._name = settings.name
        self._repository = repository
        self._state = ServerState(repository, graphs, metrics, Telemetry(RequestLog("failed"), metrics), is_fixed=True)
        self._application = Application(self._state, RequestLimits())
        self._compute.set_max_batch_size(settings.max_batch)
        self._compute.set_batch_wait_timeout_s(settings.batch_wait_seconds)

    async def __serve_build_asgi_app__(self) -> Callable[..., Awaitable[None]]:
        """Load the model and return the HTTP application; Serve calls this after the constructor.

        Raises:
            UserError: The bundle is damaged, cannot be loaded, or has code that is not allowed.
        """
        await self._load()
        return _Lifespan(self._application)

    async def check_health(self) -> None:
        """Raise unless the model is loaded and the executor thread runs; Serve calls this before the first request too.

        Raises:
            UserError: The bundle is damaged, cannot be loaded, or has code that is not allowed.
            RuntimeError: The executor thread has ended; Serve replaces the replica.
        """
        await self._load()
        if not self._state.is_alive():
            raise RuntimeError(f"model {self._name}: its executor thread has ended")

    async def _load(self) -> None:
        if not self._repository.loaded:
            await self._repository.load_all()

    async def predict(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs of raw rows, for handles: `await handle.predict.remote({"image": array})`.

        Args:
            inputs: Arrays by input name with any row count; texts and files as arrays of `bytes` objects.

        Raises:
            UserError: The rows do not fit the inputs or their ranges, or a step rejects them.
        """
        from mindsporeserver.errors import RequestError

        found: Arrays | RequestError = await self._compute(inputs)
        if isinstance(found, RequestError):
            raise UserError(f"model {self._name}: {found.message}")
        return found

    @serve.batch  # type: ignore[untyped-decorator]
    async def _compute(self, requests: list[Mapping[str, NDArray[Any]]]) -> list[Any]:
        """Return each request's outputs, or the error that it alone gets; together they are one execution."""
        model = self._repository.get_graph_model(self._name)
        return await asyncio.gather(*(self._infer(model, request) for request in requests))

    async def _infer(self, model: Any, inputs: Mapping[str, NDArray[Any]]) -> Any:
        import numpy as np

        from kfp_mindspore.formats.tensors import describe_unequal_rows, list_mismatches
        from mindsporeserver.errors import InvalidRequestError, RequestError

        errors = [f"input {name!r}: {what}" for name, what in list_mismatches(model.inputs, inputs).items()]
        if errors or (unequal := describe_unequal_rows(inputs)):
            return InvalidRequestError("; ".join(errors or [f"inputs: {unequal}"]))
        try:
            outputs, _ = await model.infer({name: np.asarray(array) for name, array in inputs.items()})
        except RequestError as error:
            return error
        return outputs


class _Lifespan:
    """An application with ASGI's start and end, which Serve requires."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "lifespan":
            # The application's routes are those below the route prefix.
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            await self._application({**scope, "path": path}, receive, send)
            return
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})


def bind_model(
    bundle: ModelBundle | Path | str,
    *,
    name: str = "",
    http: bool = True,
    max_batch: int = 64,
    max_queue: int = 1024,
    batch_wait_seconds: float = 0.0,
    allow_code: bool = False,
    key: bytes | None = None,
    **options: Any,
) -> serve.Application:
    """Return a bundle as a Serve application: for `serve.run`, or to bind to another deployment.

    Each replica verifies the bundle's digests and compiles its shapes before it is healthy. Its HTTP routes and answers
    are mindsporeserver's: V1, V2 with binary tensors, health and metadata.

    Args:
        bundle: An opened bundle, or its directory, which each node has under this path.
        name: Model name in URLs; default the directory's name.
        http: Whether it answers HTTP; False for a model that is bound to another deployment, since one deployment in an
            application may answer.
        max_batch: Most rows in an execution; larger requests are split.
        max_queue: Rows that are accepted and not yet answered; further requests are refused.
        batch_wait_seconds: How long a batch of handle calls is delayed to fill it. HTTP requests are not delayed: those
            that arrive while the graph computes are the next batch.
        allow_code: Whether the bundle's `transform.py` may be run.
        key: Decrypts an encrypted model: 16, 24 or 32 bytes.
        options: Options of Ray's `@serve.deployment`, which its versions extend, such as `num_replicas`,
            `autoscaling_config`, `ray_actor_options` or `max_ongoing_requests` (default here 256, so that batches can
            fill).

    Raises:
        UserError: The directory holds no bundle.
        MissingExtraError: The extra serving is not installed.
    """
    try:
        import mindsporeserver.app
        import mindsporeserver.models.model  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "mindsporeserver", "serving") from None
    opened = bundle if isinstance(bundle, ModelBundle) else ModelBundle.open(bundle, verify=False)
    name = name or opened.path.resolve().name
    settings = DeploymentSettings(
        str(opened.path.resolve()), name, max_batch, max_queue, batch_wait_seconds, allow_code, key
    )
    deployment = serve.deployment(serve.ingress()(ModelDeployment) if http else ModelDeployment)
    application: serve.Application = deployment.options(**{"name": name, "max_ongoing_requests": 256, **options}).bind(
        settings
    )
    return application


def build_application(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the application of a Serve configuration, such as RayService's: `import_path` names this function.

    Args:
        arguments: The configuration's `args`: arguments of `bind_model` by name.

    Raises:
        UserError: The bundle is not given, or the directory holds no bundle.
    """
    try:
        inspect.signature(bind_model).bind(**arguments)
    except TypeError as error:
        raise UserError(f"args: must be arguments of kfp_mindspore.ray.bind_model: {error}") from None
    return bind_model(**arguments)
