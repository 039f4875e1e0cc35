"""An asynchronous client of the API server: requests that are tried again where that is safe, lists by the page."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kfp_mindspore import __version__
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.operator.credentials import Credentials
from kfp_mindspore.operator.encoding import decode, encode
from kfp_mindspore.operator.resources import Resource

if TYPE_CHECKING:
    import aiohttp

PAGE_SIZE = 500
_RETRIED = frozenset({429, 500, 502, 503, 504})
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_REQUEST_SECONDS = 30.0

Count = Callable[[str, int], None]


class ApiError(KfpMindSporeError):
    """The API server refuses, or cannot be reached.

    Args:
        code: The HTTP status; 0 when there was no answer.
        reason: Kubernetes' word for it, such as `AlreadyExists`, `Conflict` or `Forbidden`.
        message: The server's sentence.
    """

    def __init__(self, code: int, reason: str, message: str):
        super().__init__(message)
        self.code = code
        self.reason = reason


class Api:
    """A pool of connections; an asynchronous context manager.

    Args:
        credentials: Address and identity.
        connections: How many requests may be under way at once, beside watches.
        count: Called with verb and HTTP status after each request (0 for no answer).
    """

    def __init__(self, credentials: Credentials, *, connections: int = 64, count: Count | None = None):
        self.credentials = credentials
        self._connections = connections
        self._count = count or (lambda verb, code: None)
        self._session: aiohttp.ClientSession | None = None
        self._sessions: list[aiohttp.ClientSession] = []

    async def __aenter__(self) -> Api:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions:
            await session.close()

    def _open(self) -> None:
        """Make connections with the present certificates; what is under way on older ones goes on."""
        import aiohttp

        connection = self.credentials.connection
        secure = connection.server.startswith("https")
        self._session = aiohttp.ClientSession(
            connection.server,
            # Watches hold a connection each for minutes: the pool must not run dry of them.
            connector=aiohttp.TCPConnector(
                limit=self._connections + 64, ssl=connection.as_ssl_context() if secure else False, keepalive_timeout=60
            ),
            headers={"User-Agent": f"kfp-mindspore-operator/{__version__}"},
        )
        self._sessions.append(self._session)

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Return an object; an ApiError of code 404 says that there is none."""
        return await self.request("get", "GET", resource.locate(namespace, name))

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object and return it."""
        return await self.request("create", "POST", resource.locate(namespace), body=body)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> dict[str, Any]:
        """Delete an object, if it is the one of this uid; what it owns goes after it."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        return await self.request("delete", "DELETE", resource.locate(namespace, name), body=body)

    async def list_pages(
        self, resource: Resource, namespace: str, selector: str = ""
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """Yield the objects page by page, each with the list's resourceVersion.

        Raises:
            ApiError: Of code 410 when the list has grown too old between two pages; begin again.
        """
        token = ""
        while True:
            query = {"limit": str(PAGE_SIZE)}
            if selector:
                query["labelSelector"] = selector
            if token:
                query["continue"] = token
            page = await self.request("list", "GET", resource.locate(namespace), query=query)
            token = page["metadata"].get("continue") or ""
            yield page.get("items") or [], str(page["metadata"].get("resourceVersion") or "")
            if not token:
                return

    async def watch(
        self, resource: Resource, namespace: str, version: str, selector: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events after a resourceVersion until the server ends the stream.

        Raises:
            ApiError: The server refuses or sends an error, of code 410 when it no longer knows that version.
            aiohttp.ClientError, TimeoutError: The stream broke, or is silent for longer than bookmarks are apart.
        """
        import aiohttp

        assert self._session is not None
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            # Different for each, so that they do not all come back at once.
            "timeoutSeconds": str(random.randint(300, 600)),
        }
        if selector:
            query["labelSelector"] = selector
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS, sock_read=150)
        async with self._session.get(
            resource.locate(namespace), params=query, headers=self.credentials.headers, timeout=limits
        ) as response:
            self._count("watch", response.status)
            if response.status == 401:
                await self.renew()
            if response.status != 200:
                raise _read_error(response.status, await response.read(), "watch", resource.locate(namespace))
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event: dict[str, Any] = decode(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise ApiError(
                            int(status.get("code") or 500), status.get("reason") or "", status.get("message") or ""
                        )
                    yield event

    async def request(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        attempts: int = _ATTEMPTS,
        seconds: float = _REQUEST_SECONDS,
    ) -> dict[str, Any]:
        """Ask, and ask again after 429, a server's failure or none at all; a write is only ever one that may repeat.

        Args:
            verb: Kubernetes' word for it, for metrics and messages.
            method: HTTP's.
            path: From the server's root.
            body: Sent as JSON.
            query: Query parameters.
            content_type: Of the body.
            attempts: How often to ask at most.
            seconds: The longest one attempt may take.

        Raises:
            ApiError: The server's refusal, or its last failure.
        """
        import aiohttp

        data = encode(body) if body is not None else None
        limits = aiohttp.ClientTimeout(total=seconds)
        pause = _FIRST_PAUSE_SECONDS
        renewed = False
        for attempt in range(1, attempts + 1):
            assert self._session is not None
            wait = pause * random.uniform(0.5, 1.5)
            headers = {**self.credentials.headers, "Accept": "application/json"}
            if data is not None:
                headers["Content-Type"] = content_type
            try:
                async with self._session.request(
                    method, path, data=data, params=query, headers=headers, timeout=limits
                ) as response:
                    content = await response.read()
                    self._count(verb, response.status)
                    if response.status < 300:
                        answer: dict[str, Any] = decode(content) if content else {}
                        return answer
                    error = _read_error(response.status, content, verb, path)
                    wait = max(wait, _read_seconds(response.headers.get("Retry-After")))
            except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, ConnectionError) as failure:
                self._count(verb, 0)
                error = ApiError(0, "Unreachable", f"{verb} {path}: no answer: {failure or type(failure).__name__}")
            if error.code == 401 and not renewed:
                renewed = True
                await self.renew()
                continue
            if attempt == attempts or (error.code and error.code not in _RETRIED):
                raise error
            logging.getLogger(__name__).debug("%s; again in %.1f s", error.message, wait)
            await asyncio.sleep(min(wait, _LONGEST_PAUSE_SECONDS))
            pause *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def renew(self) -> None:
        """Read credentials again; an exec plugin may take a while, so not on the event loop."""
        before = self.credentials.connection
        await asyncio.to_thread(self.credentials.load)
        if self.credentials.connection != before:
            self._open()


def _read_seconds(header: str | None) -> float:
    return float(header) if header and header.isdigit() else 0.0


def _read_error(code: int, content: bytes, verb: str, path: str) -> ApiError:
    try:
        status = decode(content)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        text = content.decode(errors="replace").strip()[:200]
        return ApiError(code, "", f"{verb} {path}: HTTP {code}: {text}")
    return ApiError(code, str(status.get("reason") or ""), str(status.get("message") or f"{verb} {path}: HTTP {code}"))
