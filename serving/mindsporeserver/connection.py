"""uvicorn's HTTP/1.1 connection with limits on incomplete requests, half-closed clients and cancellation.

uvicorn 0.54 documents no protocol class. This module, and no other, uses HttpToolsProtocol's callbacks, `headers`,
`url`, `parser`, `flow`, `pipeline`, `server_state` and `cycle` with the `transport`, `keep_alive`, `more_body`,
`disconnected`, `message_event`, `response_started` and `response_complete`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

# Connection key in an ASGI scope's `extensions`.
EXTENSION = "mindsporeserver.connection"

_PROBE_SECONDS = 0.05


# The first bytes of every uvicorn response.
_RESPONSE_BEGIN = b"HTTP/1.1 "


class _BegunResponse:
    """The transport for a response whose first bytes are sent."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data.removeprefix(_RESPONSE_BEGIN))
        self.write = self._transport.write  # type: ignore[method-assign]


class _RefusedError(Exception):
    """Stops parsing a request whose refusal is already set."""


class Connection(HttpToolsProtocol):  # type: ignore[misc]
    """An HTTP connection that bounds size and duration for everything before a body.

    An ASGI application finds it in the scope's extensions and sets `task` to the task that is to be cancelled when the
    client disconnects: ASGI's own event is seen only by a second task per request.
    """

    # nginx accepts 4 × 8 KiB in headers and waits 60 s for them.
    max_header_bytes = 64 << 10
    header_seconds = 30.0
    # Time and bytes that a refused client may go on sending: closing earlier resets the connection, and a reset
    # discards a response that the client has not read yet (RFC 9112, section 9.6).
    linger_seconds = 5.0
    # Time for the first request on a new connection, and for a further one on an idle connection, at a shutdown.
    first_seconds = 5.0
    next_seconds = 1.0
    linger_bytes = 64 << 20

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.task: asyncio.Task[Any] | None = None
        self.is_lost = False
        # Bytes since the last complete header block or body piece: the parser buffers incomplete ones.
        self._incomplete_bytes = 0
        # Event loop time at which the next request's headers are due; None while a request is handled.
        self._headers_due: float | None = None
        self._refusal: tuple[int, str] | None = None
        self._refused_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the first request's timeout."""
        super().connection_made(transport)
        self._headers_due = self.loop.time() + self.header_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in progress."""
        self.is_lost = True
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()

    def eof_received(self) -> bool | None:
        """Answer a request whose client has closed only the sending side; with TLS there is no such half."""
        cycle = self.cycle
        if self.scheme == "https" or cycle is None or cycle.response_complete or cycle.more_body or self._refusal:
            return None
        cycle.keep_alive = False
        if not cycle.response_started and not self.pipeline:
            # A closed socket answers data with a reset, a half-closed client reads its response's beginning.
            self.transport.write(_RESPONSE_BEGIN)
            cycle.transport = _BegunResponse(self.transport)
            self._check_peer()
        return True

    def data_received(self, data: bytes) -> None:
        """Parse data and refuse headers and trailers that exceed the limit."""
        if self._refusal is not None:
            self._refused_bytes += len(data)
            if self._refused_bytes > self.linger_bytes:
                self.transport.abort()
            return
        self._incomplete_bytes += len(data)
        super().data_received(data)
        if self._refusal is None and self._incomplete_bytes > self.max_header_bytes:
            self._refuse_headers()
        elif self._headers_due is None and (self.cycle is None or self.cycle.response_complete):
            # uvicorn ends its keep-alive timeout at any data, also at a line feed between two requests.
            self._headers_due = self.loop.time() + self.header_seconds

    def on_message_begin(self) -> None:
        """Start the header timeout."""
        super().on_message_begin()
        self._headers_due = self.loop.time() + self.header_seconds

    def on_headers_complete(self) -> None:
        """Start the request."""
        if self._incomplete_bytes > self.max_header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self.max_header_bytes:
                self._refuse_headers()
                raise _RefusedError
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            # Proxies and servers that choose different ones route one request to two places.
            self.refuse(400, f"Host: must be given once, got {hosts}")
            raise _RefusedError
        self._incomplete_bytes = 0
        self._headers_due = None
        self.scope["extensions"] = {EXTENSION: self}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a body piece on; the application limits bodies."""
        self._incomplete_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        if self._refusal is None:
            self.refuse(400, msg)

    def shutdown(self) -> None:
        """Close after the request in progress, or soon; a request that arrives until then is still answered.

        A client may have sent a request on an idle connection, or on one that it has just opened.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
        elif self._refusal is None and not self._incomplete_bytes:
            self._headers_due = self.loop.time() + (self.first_seconds if self.cycle is None else self.next_seconds)

    def close_if_late(self) -> None:
        """Close the connection when the next request's headers are overdue."""
        if self._headers_due is None or self.loop.time() < self._headers_due or self.transport.is_closing():
            return
        if self._incomplete_bytes:
            self.refuse(408, f"headers: must arrive within {self.header_seconds:g} s")
        else:
            self.transport.close()

    def refuse(self, status: int, message: str) -> None:
        """Write an error as the connection's last response, and ignore all that follows.

        Args:
            status: The HTTP status.
            message: The reason, for the client.
        """
        self._refusal = (status, message)
        self._headers_due = None
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body:
                # An earlier request is still being answered: its response is the last one.
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        body = orjson.dumps({"error": message})
        head = [STATUS_LINE[status], b"content-type: application/json\r\nconnection: close\r\n"]
        for name, value in self.server_state.default_headers:
            head += (name, b": ", value, b"\r\n")
        self.transport.write(b"".join((*head, b"content-length: %d\r\n\r\n" % len(body), body)))
        self.flow.resume_reading()
        self.loop.call_later(self.linger_seconds, self.transport.abort)
        try:
            # TLS has no half-closed state.
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:
            self.transport.close()

    def _refuse_headers(self) -> None:
        is_url = self._headers_due is not None and len(self.url) > self.max_header_bytes // 2
        what, status = ("URL", 414) if is_url else ("headers", 431)
        self.refuse(status, f"{what}: must have at most {self.max_header_bytes} bytes")

    def _check_peer(self) -> None:
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        peer = self.transport.get_extra_info("socket")
        if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.EPIPE, errno.ECONNRESET):
            self.transport.abort()
        else:
            self.loop.call_later(_PROBE_SECONDS, self._check_peer)
