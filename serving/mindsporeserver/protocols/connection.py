"""uvicorn's HTTP connections with limits on what arrives before a request is one: headers that trickle or never end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
