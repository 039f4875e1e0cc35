"""HTTP connections to an API server: authentication, retries, streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.kube.backoff import Backoff
from kfp_mindspore.kube.config import ClusterConfig, load_config
from kfp_mindspore.kube.errors import ApiRequest, UncertainError, UnreachableError, explain_response, read_status

if TYPE_CHECKING:
    import aiohttp

Lines = list[bytes]

JSON = "application/json"

_CONCURRENT_REQUESTS = 64
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_LONGEST_LINE = 64 * 1024 * 1024
# 500 is retried only with Retry-After: without, it is also the response to requests that fail every time.
_RETRIED = frozenset({429, 502, 503, 504})
_IS_IT_UP = "Is the cluster up, and is it the right one (--context, --kubeconfig)?"
# Streams may be silent for hours; keepalive detects peers that are gone.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
        if hasattr(socket, name)
    ),
)


class Transport:
    """Connections to one API server, for one event loop, made on first use.

    Args:
        kubeconfig: See `load_config`.
        context: See `load_config`.
        retry_timeout: Seconds for which a server that has responded before is retried, and in a pod any server: a pod's
            network, such as an Istio sidecar, may start after its containers.
        count_response: Called with verb and HTTP status after each request (0 for no response).
    """

    def __init__(
        self,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        retry_timeout: float = 300.0,
        count_response: Callable[[str, int], None] | None = None,
    ) -> None:
        self.retry_timeout = retry_timeout
        self._kubeconfig = kubeconfig
        self._context = context
        self._count_response = count_response
        self._config: ClusterConfig | None = None
        self._is_rejected = False
        self._sessions: list[aiohttp.ClientSession] = []
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        self._has_responded = False

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions:
            await session.close()

    async def get_config(self) -> ClusterConfig:
        """Return address and credentials, read on first use."""
        async with self._lock:
            if self._config is None or self._is_rejected:
                # Exec plugins may take seconds.
                config = await asyncio.to_thread(load_config, self._kubeconfig, self._context)
                if config != self._config:
                    # Requests under way continue on the old session's connections.
                    self._sessions.append(_create_session(config))
                if self._config is None:
                    self._has_responded = config.is_given
                self._config, self._is_rejected = config, False
            return self._config

    async def request(
        self,
        request: ApiRequest,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Send a request and return the JSON response, or any other response's text.

        Args:
            request: Verb and object, for error messages.
            method: HTTP method.
            path: Path at the server.
            query: Query parameters; None and empty ones are left out.
            body: JSON types to send.
            content_type: The body's media type.

        Raises:
            KfpMindSporeError: An error in `kfp_mindspore.kube.errors`, NotFoundError, AlreadyExistsError or
                ValidationError.
        """
        response, content = await self._send(request, method, path, query, body, content_type)
        return json.loads(content) if response.content_type == JSON else content.decode(errors="replace")

    @contextlib.asynccontextmanager
    async def stream(
        self,
        request: ApiRequest,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        read_timeout: float | None = None,
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """Send a GET request with an open-ended response, and yield an iterator over its lines, in batches.

        Args:
            request: Verb and object, for error messages.
            path: Path at the server.
            query: Query parameters.
            read_timeout: Silent seconds until reading raises; None for no limit.
        """
        response, _ = await self._send(request, "GET", path, query, None, JSON, stream=True, read_timeout=read_timeout)
        try:
            yield _read_lines(response)
        finally:
            response.close()

    def describe(self, error: Exception) -> str:
        """Return a sentence about a connection that failed or broke."""
        server, source = (self._config.server, self._config.source) if self._config else ("", "")
        return f"the API server {server} of {source} cannot be reached: {str(error) or type(error).__name__}"

    async def _send(
        self,
        request: ApiRequest,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        content_type: str,
        *,
        stream: bool = False,
        read_timeout: float | None = _READ_SECONDS,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Return a response with status 2xx and its body, after retries where they are safe."""
        try:
            import aiohttp
        except ImportError:
            raise MissingExtraError("aiohttp", "kubernetes") from None

        given = {key: value for key, value in (query or {}).items() if value not in (None, "")}
        target = path + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": f"{JSON}, */*", **({} if data is None else {"Content-Type": content_type})}
        backoff = Backoff(self.retry_timeout)
        is_renewed = False
        while True:
            try:
                async with contextlib.nullcontext() if stream else self._slots:
                    response, content = await self._try(method, target, data, headers, stream, read_timeout)
            except transport_errors() as error:
                self._count(request, 0)
                text = f"cannot {request}: {self.describe(error)}"
                not_sent = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
                if method == "POST" and not not_sent:
                    raise UncertainError(text, hint=_IS_IT_UP) from error
                if not self._has_responded:
                    raise UnreachableError(text, hint=_IS_IT_UP) from error
                await self._wait(backoff, text)
                continue
            self._has_responded = True
            self._count(request, response.status)
            if response.status < 300:
                return response, content
            if response.status == 401 and not is_renewed:
                # The token may have expired before its time, or have been rotated.
                is_renewed = self._is_rejected = True
                continue
            refusal = explain_response(request, response.status, read_status(content))
            if method == "POST" and response.status in (502, 504):
                raise UncertainError(str(refusal))
            retry_after = response.headers.get("Retry-After")
            if response.status not in _RETRIED and not (response.status == 500 and retry_after):
                raise refusal
            seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
            await self._wait(backoff, str(refusal), seconds)

    async def _try(
        self,
        method: str,
        target: str,
        data: bytes | None,
        headers: Mapping[str, str],
        stream: bool,
        read_timeout: float | None,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        import aiohttp
        from yarl import URL

        config = await self.get_config()
        if authorization := config.get_authorization():
            headers = {**headers, "Authorization": authorization}
        response = await self._sessions[-1].request(
            method,
            URL(config.server + target, encoded=True),
            data=data,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=read_timeout),
            server_hostname=config.server_name,
            allow_redirects=False,
        )
        return response, b"" if stream and response.status < 300 else await response.read()

    async def _wait(self, backoff: Backoff, reason: str, retry_after: float | None = None) -> None:
        try:
            await backoff.wait(reason, retry_after)
        except UnreachableError:
            # Later requests, such as deletions during cleanup, fail fast.
            self._has_responded = False
            raise

    def _count(self, request: ApiRequest, status: int) -> None:
        if self._count_response is not None:
            self._count_response(request.verb, status)


def transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for connections that cannot be made, or break."""
    import aiohttp

    return (aiohttp.ClientError, OSError, asyncio.TimeoutError)


async def _read_lines(response: aiohttp.ClientResponse) -> AsyncIterator[Lines]:
    """Yield each chunk's complete lines; the last line may lack its end.

    Raises:
        ValueError: A line is longer than 64 MiB.
    """
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > _LONGEST_LINE:
            raise ValueError("a line of more than 64 MiB")
    if rest:
        yield [rest]


def _create_session(config: ClusterConfig) -> aiohttp.ClientSession:
    try:
        import aiohttp
    except ImportError:
        raise MissingExtraError("aiohttp", "kubernetes") from None

    from kfp_mindspore import __version__

    def create_socket(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        created = socket.socket(family, kind, protocol)
        for option in _KEEPALIVE:
            created.setsockopt(*option)
        return created

    connector = aiohttp.TCPConnector(
        # Each watch and each followed log holds a connection.
        limit=0,
        ssl=config.create_ssl_context() if config.server.startswith("https") else False,
        socket_factory=create_socket,
    )
    return aiohttp.ClientSession(connector=connector, headers={"User-Agent": f"kfp-mindspore/{__version__}"})
