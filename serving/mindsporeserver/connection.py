"""uvicorn's HTTP connections with limits on what arrives before a request is one: headers that trickle or never end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mindsporeserver.listener import Listener

# What is usual for a server: nginx takes 4 × 8 KiB of headers, and waits 60 s for them.
MAX_HEADER_BYTES = 64 << 10
HEADER_SECONDS = 30.0


class GuardedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Closes connections whose headers are too large or do not arrive in time.

    A connection that waits between two requests belongs to uvicorn's own keep-alive timeout.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
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

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._in_header = False
        super().on_headers_complete()
        if self.listener is not None and not self.pipeline and self.listener.take_surplus():
            self.cycle.keep_alive = False

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self.send_400_response(f"Headers must have at most {MAX_HEADER_BYTES} bytes.")
            self._header_bytes = -(1 << 62)

    def _begin(self) -> None:
        self._header_bytes = 0
        self._in_header = True
        self._begun = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._check)

    def _check(self) -> None:
        # One timer serves many requests of a connection: it looks again, and is not set anew for each of them.
        self._timer = None
        if not self._in_header or self.transport.is_closing():
            return
        rest = self._begun + HEADER_SECONDS - self.loop.time()
        if rest > 0:
            self._timer = self.loop.call_later(rest, self._check)
        else:
            self.transport.close()
