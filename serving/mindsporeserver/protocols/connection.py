"""uvicorn's HTTP connections with limits on what arrives before a request is one: headers that trickle or never end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mindsporeserver.workers.listener import Listener


class GuardedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Closes connections whose headers, or whatever else is no body, never end or do not arrive in time.

    A connection that waits between two requests belongs to uvicorn's own keep-alive timeout.
    """

    # What is usual for a server: nginx takes 4 × 8 KiB of headers, and waits 60 s for them.
    max_header_bytes = 64 << 10
    header_seconds = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Received since anything came of it: a header or a trailer is kept by the parser until it is whole.
        self._pending_bytes = 0
        self._in_header = False
        self._begun = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # What accepted this connection, where several workers share the port.
        self.listener: Listener | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse what goes on without an end; what is whole in one piece may be as long as that piece."""
        self._pending_bytes += len(data)
        super().data_received(data)
        if self._pending_bytes > self.max_header_bytes and not self.transport.is_closing():
            self.send_400_response(f"Headers must have at most {self.max_header_bytes} bytes.")
        elif not self._in_header and (self.cycle is None or self.cycle.response_complete):
            # Line feeds before a request are none, and end uvicorn's own wait for the next one.
            self._begin()

    def on_message_begin(self) -> None:
        """Begin to wait for the headers."""
        self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._in_header = False
        self._pending_bytes = 0
        super().on_headers_complete()
        if self.listener is not None and not self.pipeline and self.listener.take_surplus():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Leave it to whoever reads the body, who has limits of his own."""
        self._pending_bytes = 0
        super().on_body(body)

    def _begin(self) -> None:
        self._pending_bytes = 0
        self._in_header = True
        self._begun = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._check)

    def _check(self) -> None:
        # One timer serves many requests of a connection: it looks again, and is not set anew for each of them.
        self._timer = None
        if not self._in_header or self.transport.is_closing():
            return
        rest = self._begun + self.header_seconds - self.loop.time()
        if rest > 0:
            self._timer = self.loop.call_later(rest, self._check)
        else:
            self.transport.close()


def answer_at_once(send: Any, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
    """Write a whole 200 to a connection that stays open, in one piece and without what uvicorn checks of each header.

    Args:
        send: What an ASGI application is given, in answer to a POST.
        headers: Lower case and known to be right; Content-Length is added.
        body: All of it.

    Returns:
        Whether it was written; if not, `send` is to be used.
    """
    cycle: Any = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle:
        return False
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    parts = [b"HTTP/1.1 200 OK\r\n"]
    for name, value in (*cycle.default_headers, *headers):
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"content-length: %d\r\n\r\n" % len(body))
    parts.append(body)
    cycle.transport.write(b"".join(parts))
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True
