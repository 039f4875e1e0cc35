"""Server process: HTTP and gRPC in one event loop, model loading, and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import uvicorn

from kfp_mindspore.errors import KfpMindSporeError
from mindsporeserver.access import Access, TokenFile
from mindsporeserver.app import Application
from mindsporeserver.bodies import RequestLimits
from mindsporeserver.connection import Connection
from mindsporeserver.grpc import HealthService, InferenceService, add_reflection
from mindsporeserver.models.watch import ModelWatcher
from mindsporeserver.ports import stop_handshakes
from mindsporeserver.state import ServerState
from mindsporeserver.tls import TLSOptions

if TYPE_CHECKING:
    from mindsporeserver.workers import WorkerLink

logger = logging.getLogger(__name__)

_EXPIRE_SECONDS = 0.2
_DEVICE_SECONDS = 5.0
_RESTART = "The container is to be started again, on a device that works."
# Time to accept queued connections and finish handshakes before the listener is closed. In several turns: after the
# whole process was paused, an expired timer runs before sockets are polled.
_SETTLE_TURNS, _SETTLE_SECONDS = 10, 0.02
# Time to hold late gRPC calls, and to deliver GOAWAY before they end: grpc ends calls that reach a stopped server with
# CANCELLED, which clients do not retry.
_HOLD_SECONDS = 0.3
_GOAWAY_SECONDS = 0.2


@dataclass(frozen=True)
class ServerOptions:
    """A server process's options.

    Args:
        host: The gRPC port's address.
        http_socket: Socket bound to the HTTP port.
        grpc_port: gRPC port; None to disable gRPC.
        http_tls: HTTP certificates; None for plain text.
        grpc_tls: gRPC certificates; None for plain text.
        limits: Request limits.
        max_send_bytes: A gRPC response's maximum size; -1 for no limit.
        max_receive_bytes: A gRPC request's maximum size; None for the HTTP body limit.
        event_loop: auto, uvloop or asyncio.
        keep_alive_seconds: Seconds before an idle HTTP connection is closed.
        drain_seconds: Seconds after SIGTERM for which new connections are accepted.
        grace_period: Seconds for accepted requests to finish after that.
        watch_seconds: Poll interval for the models' files; 0 disables reloading.
        tokens: Accepted bearer tokens; None requires none.
        management_socket: Socket bound to the management port; None without one.
        has_docs: Whether the OpenAPI document, its page and gRPC's reflection are served.
    """

    host: str
    http_socket: socket.socket
    grpc_port: int | None
    http_tls: TLSOptions | None = None
    grpc_tls: TLSOptions | None = None
    limits: RequestLimits = field(default_factory=RequestLimits)
    max_send_bytes: int = -1
    max_receive_bytes: int | None = None
    event_loop: str = "auto"
    keep_alive_seconds: int = 65
    drain_seconds: float = 0.0
    grace_period: int = 30
    watch_seconds: float = 0.0
    tokens: TokenFile | None = None
    management_socket: socket.socket | None = None
    has_docs: bool = False

    @property
    def access(self) -> Access:
        """The public ports' access rules."""
        managed = self.management_socket
        return Access(self.tokens, None if managed is None else managed.getsockname()[1])


class _HTTPServer(uvicorn.Server):  # type: ignore[misc]
    """A uvicorn server without signal handlers; `Server` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """Serves a repository.

    Args:
        state: State shared by HTTP and gRPC.
        options: See `ServerOptions`.
        link: A worker's connection to the parent; None for a single process.
        is_lost: Returns whether the device computes no more, in the executor thread; None for the CPU.
    """

    def __init__(
        self,
        state: ServerState,
        options: ServerOptions,
        link: WorkerLink | None = None,
        is_lost: Callable[[], bool] | None = None,
    ) -> None:
        self._is_lost = is_lost
        self._state = state
        self._options = options
        self._link = link
        self._failure: BaseException | None = None

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT; requests get 503 until their model is loaded and warm.

        Raises:
            KfpMindSporeError: An initial model cannot be loaded, or the device is lost.
        """
        if self._options.event_loop == "asyncio":
            asyncio.run(self._run())
        else:
            import uvloop

            uvloop.run(self._run())
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        access = self._options.access
        self._http = _HTTPServer(self._configure_http(access))
        self._management = _HTTPServer(self._configure_http(Access(self._options.tokens)))
        self._service = InferenceService(self._state, self._options.limits.timeout_seconds, access)
        self._health = HealthService()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._on_signal)
        if self._link is not None:
            self._link.follow_parent(self._ending.set)
        expiring = loop.create_task(self._expire())
        loading = loop.create_task(self._load())
        loading.add_done_callback(self._on_loaded)
        watching = loop.create_task(self._watch_device())
        if self._link is not None and not self._link.listens_early:
            await self._wait_loaded(self._link.opened)
        if not self._ending.is_set():
            rpc = await self._start_grpc()
            serving = loop.create_task(self._http.serve(sockets=[self._options.http_socket]))
            managed = self._options.management_socket
            managing = loop.create_task(self._management.serve(sockets=[managed])) if managed is not None else None
            await self._ending.wait()
            await self._drain(serving, rpc)
            if managing is not None:
                # The last to end, so that drain metrics are scraped.
                self._management.should_exit = True
                await managing
        for task in (loading, expiring, watching):
            task.cancel()
        await asyncio.gather(loading, expiring, watching, return_exceptions=True)
        await self._state.repository.close()
        self._state.close()

    def _on_signal(self) -> None:
        if self._ending.is_set():
            # The second signal does not wait for accepted requests.
            self._http.force_exit = self._management.force_exit = True
        self._ending.set()

    def _on_loaded(self, loading: asyncio.Task[None]) -> None:
        error = None if loading.cancelled() else loading.exception()
        if error is None:
            return
        if self._state.repository.loaded:
            logger.error("reloading of models has stopped: %s", error, exc_info=error)
            return
        self._failure = error
        self._ending.set()

    async def _wait_loaded(self, opened: asyncio.Event) -> None:
        while not (self._state.repository.loaded and opened.is_set()) and not self._ending.is_set():
            await asyncio.sleep(0.02)

    async def _load(self) -> None:
        repository, seconds = self._state.repository, self._options.watch_seconds
        watcher = ModelWatcher(repository, seconds) if seconds > 0 else None
        await repository.load_all()
        # A full collection over these objects would delay requests by 0.1 s.
        gc.collect()
        gc.freeze()
        await self._health.set_serving(True)
        if self._link is not None:
            self._link.report_ready()
        if watcher is not None:
            await watcher.run()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            # After the whole process was paused, requests that have arrived are read before their time is over.
            await asyncio.sleep(_SETTLE_SECONDS)
            self._state.repository.expire()
            for server in (self._http, self._management):
                for connection in tuple(server.server_state.connections):
                    connection.close_if_late()

    async def _watch_device(self) -> None:
        while self._is_lost is not None:
            await asyncio.sleep(_DEVICE_SECONDS)
            if await self._state.call(self._is_lost):
                self._failure = KfpMindSporeError("the device is lost: it computes no more", hint=_RESTART)
                self._ending.set()
                return

    def _configure_http(self, access: Access) -> uvicorn.Config:
        options = self._options
        application: Any = Application(self._state, options.limits, access, has_docs=options.has_docs)
        tracing = self._state.telemetry.tracing
        return uvicorn.Config(
            application if tracing is None else tracing.wrap(application),
            interface="asgi3",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=options.grace_period,
            timeout_keep_alive=options.keep_alive_seconds,
            server_header=False,
            proxy_headers=False,
            **(options.http_tls.uvicorn_options() if options.http_tls is not None else {}),
        )

    async def _start_grpc(self) -> grpc.aio.Server | None:
        options = self._options
        if options.grpc_port is None:
            return None
        received = options.max_receive_bytes
        if received is None:
            received = options.limits.max_bytes + (1 << 16)
        tracing = self._state.telemetry.tracing
        rpc = grpc.aio.server(
            interceptors=[] if tracing is None else [tracing.build_interceptor()],
            options=[
                ("grpc.max_send_message_length", options.max_send_bytes),
                ("grpc.max_receive_message_length", received),
                ("grpc.so_reuseport", int(self._link is not None)),
            ],
        )
        rpc.add_generic_rpc_handlers((self._service.build_handlers(),))
        await self._health.add_to(rpc, is_serving=self._state.is_ready())
        if options.has_docs:
            add_reflection(rpc)
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{options.grpc_port}"
        if options.grpc_tls is not None:
            rpc.add_secure_port(address, options.grpc_tls.grpc_credentials())
        else:
            rpc.add_insecure_port(address)
        await rpc.start()
        return rpc

    async def _drain(self, serving: asyncio.Task[Any], rpc: grpc.aio.Server | None) -> None:
        """Answer with `Connection: close` while requests may arrive, then close the listener, then connections."""
        loop = asyncio.get_running_loop()
        self._state.is_draining = True
        await self._health.set_serving(False)
        deadline = loop.time() + self._options.drain_seconds
        while loop.time() < deadline and not self._http.force_exit:
            await asyncio.sleep(0.02)
        stop_handshakes(self._options.http_socket)
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(_SETTLE_SECONDS)
        self._http.should_exit = True
        stopping = [serving] if rpc is None else [serving, loop.create_task(self._stop_grpc(rpc))]
        await asyncio.gather(*stopping)
        if self._http.force_exit:
            for task in self._http.server_state.tasks:
                task.cancel()

    async def _stop_grpc(self, rpc: grpc.aio.Server) -> None:
        self._service.close()
        await self._service.drain(0 if self._http.force_exit else self._options.grace_period)
        await asyncio.sleep(_HOLD_SECONDS)
        stopping = asyncio.ensure_future(rpc.stop(1.0))
        await asyncio.sleep(_GOAWAY_SECONDS)
        self._service.end()
        await stopping
