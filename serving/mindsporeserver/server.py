"""kserve.ModelServer with a thin layer for the hot routes, one event loop for HTTP and gRPC, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import uvicorn
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from kserve.errors import InvalidInput
from kserve.logging import logger
from kserve.model_server import ModelServer, app
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException

from kfp_mindspore.errors import KfpMindSporeError
from mindsporeserver.errors import RequestError
from mindsporeserver.models.graphs import GraphThread
from mindsporeserver.models.model import MindSporeModel
from mindsporeserver.models.repository import Repository
from mindsporeserver.models.watch import BundleWatch, follow
from mindsporeserver.observability.logs import RequestLog
from mindsporeserver.observability.metrics import Metrics
from mindsporeserver.protocols.asgi import HotRoutes, RequestLimits
from mindsporeserver.protocols.connection import GuardedProtocol
from mindsporeserver.protocols.servicer import Servicer, build_handlers
from mindsporeserver.tls import TLSOptions, build_grpc_credentials

if TYPE_CHECKING:
    from mindsporeserver.observability.tracing import Tracer
    from mindsporeserver.workers.attachment import Attachment

_EXPIRE_SECONDS = 0.2


@dataclass(frozen=True)
class Listening:
    """Where a server listens.

    Args:
        host: The address.
        http_socket: Bound, and listening where several processes share it.
        grpc_port: None without gRPC.
        rest_tls: Certificates of REST; None for plain text.
        grpc_tls: Certificates of gRPC; None for plain text.
    """

    host: str
    http_socket: socket.socket
    grpc_port: int | None
    rest_tls: TLSOptions | None = None
    grpc_tls: TLSOptions | None = None


class _DataPlane(DataPlane):  # type: ignore[misc]
    def __init__(self, repository: Repository, graphs: GraphThread) -> None:
        super().__init__(model_registry=repository)
        self._repository = repository
        self._graphs = graphs

    async def live(self) -> dict[str, str]:
        """Tell whether the graph thread is alive; without it every request would wait for ever."""
        return {"status": "alive" if self._graphs.is_alive() else "dead"}

    async def ready(self) -> bool:
        """Tell whether the models of the start are loaded and warm; kserve's own says yes at once."""
        return self._repository.loaded

    def get_model_from_registry(self, name: str) -> MindSporeModel:
        """Return a model; one that is loaded at this moment is not ready, rather than not there."""
        return self._repository.find(name)

    async def model_ready(self, model_name: str, disable_predictor_health_check: bool = False) -> bool:
        """Tell whether a model answers."""
        return self._repository.find(model_name).ready

    async def model_metadata(self, model_name: str) -> dict[str, Any]:
        """Describe a model from its signature."""
        model = self.get_model_from_registry(model_name)
        return {**model.describe(), "versions": self._repository.list_versions(model_name)}

    def decode(self, *arguments: Any, **options: Any) -> Any:
        """Decode as kserve does, but call what cannot be decoded the client's mistake."""
        try:
            return super().decode(*arguments, **options)
        except KeyError as error:
            raise InvalidInput(f"body: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"body: {error}") from None


class _UvicornServer(uvicorn.Server):  # type: ignore[misc]
    """Leaves signals to whoever owns the process, and shares connections with other workers where there are any."""

    def __init__(self, config: uvicorn.Config, attachment: Attachment | None) -> None:
        super().__init__(config)
        self._attachment = attachment

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        if self._attachment is None:
            await super().startup(sockets)
            return

        def make_protocol() -> GuardedProtocol:
            protocol = GuardedProtocol(config=self.config, server_state=self.server_state, app_state={})
            protocol.listener = listener
            return protocol

        connections = self.server_state.connections
        listener = self._attachment.listen(make_protocol, count_open=lambda: len(connections), context=self.config.ssl)
        self.servers, self.started = [listener], True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server(ModelServer):  # type: ignore[misc]
    """Serves a repository.

    Args:
        repository: What is served.
        graphs: The process' graph thread.
        listening: Where.
        limits: What a request may cost.
        metrics: The process' metrics.
        log: Writes a line a request.
        tracer: Makes spans, or None.
        attachment: This worker's place among others, or None.
        watch: What is asked for changed models, or None.
        watch_seconds: How often.
        **options: kserve.ModelServer's own.
    """

    def __init__(
        self,
        repository: Repository,
        graphs: GraphThread,
        listening: Listening,
        *,
        limits: RequestLimits,
        metrics: Metrics,
        log: RequestLog,
        tracer: Tracer | None = None,
        attachment: Attachment | None = None,
        watch: BundleWatch | None = None,
        watch_seconds: float = 1.0,
        **options: Any,
    ) -> None:
        # A server of language models costs 0.6 s to import and is registered only when it can be imported.
        sys.modules.setdefault("kserve.protocol.rest.openai.config", None)  # type: ignore[arg-type]
        super().__init__(registered_models=repository, **options)
        self._repository = repository
        self._graphs = graphs
        self._listening = listening
        self._metrics = metrics
        self._log = log
        self._tracer = tracer
        self._attachment = attachment
        self._watch = watch
        self._watch_seconds = watch_seconds
        self._limits = limits
        self._control = attachment.control if attachment is not None else repository
        self._failure: BaseException | None = None
        self.dataplane = _DataPlane(repository, graphs)

    def serve(self) -> None:
        """Serve until a signal comes; requests get 503 until their model is loaded and warm.

        Raises:
            KfpMindSporeError: A model cannot be loaded at the start.
        """
        if self.event_loop == "asyncio":
            asyncio.run(self._run())
        else:
            import uvloop

            uvloop.run(self._run())
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._http = _UvicornServer(self._configure(), self._attachment)
        self._rpc: grpc.aio.Server | None = None
        self._ending = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._take_signal)
        tasks: list[asyncio.Task[Any]] = [loop.create_task(self._expire())]
        if self._attachment is not None:
            tasks.append(loop.create_task(self._attachment.serve(self._repository)))
        loading = loop.create_task(self._load())
        loading.add_done_callback(self._take_result)
        if self._attachment is not None:
            waiting = loop.create_task(self._attachment.wait_to_accept())
            ending = loop.create_task(self._ending.wait())
            await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
            tasks += [waiting, ending]
        if not self._ending.is_set():
            await self._start_grpc()
            serving = loop.create_task(self._http.serve(sockets=[self._listening.http_socket]))
            await self._ending.wait()
            await asyncio.gather(serving, self._stop_grpc())
        loading.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(loading, *tasks, return_exceptions=True)
        await self._repository.close()
        self._graphs.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _take_signal(self) -> None:
        if self._ending.is_set():
            # The second one does not wait for what was accepted.
            self._http.force_exit = True
        self._end()

    def _end(self) -> None:
        self._http.should_exit = True
        self._ending.set()

    def _take_result(self, loading: asyncio.Task[None]) -> None:
        error = None if loading.cancelled() else loading.exception()
        if error is None:
            return
        if self._repository.loaded:
            # What is served is served on; only changes are not looked for any more.
            logger.error("models are no longer watched: %s", error, exc_info=error)
            return
        self._failure = error
        if self._attachment is not None and isinstance(error, KfpMindSporeError):
            self._attachment.report_failure(error)
        self._end()

    async def _load(self) -> None:
        await self._repository.load_all()
        # What is there now stays: looking through it again and again would hold up requests for a tenth of a second.
        gc.collect()
        gc.freeze()
        if self._attachment is not None:
            await self._attachment.report_ready()
        elif self._watch is not None:
            await follow(self._watch, self._watch_seconds, self._repository)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            self._repository.expire()

    def _configure(self) -> uvicorn.Config:
        tls = self._listening.rest_tls
        return uvicorn.Config(
            HotRoutes(
                self._build_application(),
                self._repository,
                self._control,
                self._limits,
                self._metrics,
                self._log,
                self._tracer,
            ),
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            # kserve's and our own configuration stays.
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=self.grace_period,
            timeout_keep_alive=self.timeout_keep_alive,
            server_header=False,
            proxy_headers=False,
            backlog=2048,
            **(tls.uvicorn_options() if tls is not None else {}),
        )

    def _build_application(self) -> Any:
        rest = RESTServer("kserve.model_server:app", self.dataplane, self.model_repository_extension, self.http_port)
        # Not `create_application`: its middleware writes three log lines a request.
        rest._register_endpoints(app)
        rest._add_exception_handlers(app)
        app.add_exception_handler(RequestValidationError, _refuse)
        app.add_exception_handler(RequestError, _refuse_request)
        app.add_exception_handler(HTTPException, _refuse_route)
        return app

    async def _start_grpc(self) -> None:
        listening = self._listening
        if listening.grpc_port is None:
            return
        limit = self._limits.max_bytes + (1 << 16)
        self._rpc = grpc.aio.server(
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", limit),
                ("grpc.so_reuseport", 1 if self._attachment is not None else 0),
            ]
        )
        servicer = Servicer(self.dataplane, self._repository, self._control, self._log, self._tracer)
        self._rpc.add_generic_rpc_handlers((build_handlers(servicer),))
        host = f"[{listening.host}]" if ":" in listening.host else listening.host
        address = f"{host}:{listening.grpc_port}"
        if listening.grpc_tls is not None:
            tls = listening.grpc_tls
            self._rpc.add_secure_port(address, build_grpc_credentials(tls.certfile, tls.keyfile, tls.ca_certs))
        else:
            self._rpc.add_insecure_port(address)
        await self._rpc.start()

    async def _stop_grpc(self) -> None:
        if self._rpc is not None:
            await self._rpc.stop(grace=self.grace_period)


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # A body may be JSON or bytes, and each form says what is wrong with it: only the JSON one is meant.
    details = [detail for detail in error.errors() if "bytes" not in detail["loc"]] or error.errors()
    texts = [
        f"{'.'.join(str(part) for part in detail['loc'] if part != 'InferenceRequest')}: {detail['msg']}"
        + (f", got {detail['input']!r:.80}" if detail["type"] != "missing" else "")
        for detail in details
    ]
    return JSONResponse(status_code=400, content={"error": "; ".join(texts)})


async def _refuse_route(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(status_code=error.status_code, content={"error": error.detail}, headers=error.headers)


async def _refuse_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return JSONResponse(status_code=error.status, content={"error": error.message})
