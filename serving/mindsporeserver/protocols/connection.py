"""uvicorn's HTTP connections with limits on what is no request: headers that never end, the rest of a refused body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from mindsporeserver.workers.listener import Listener


class GuardedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Closes connections whose headers, or whatever else is no body, never end or do not arrive in time.

    Who is refused while sending gets the reason: closing at once would reset the connection, and a reset takes the
    answer away from a client that has not read it yet (RFC 9112, section 9.6). So the server says that it is done,
    and takes what is still on its way without looking at it, for a while.

    A connection that waits between two requests belongs to uvicorn's own keep-alive timeout.
    """

    # What is usual for a server: nginx takes 4 × 8 KiB of headers, and waits 60 s for them.
    max_header_bytes = 64 << 10
    header_seconds = 30.0
    # As long as nginx waits for more of what nobody reads, and twice what a request may have by default.
    linger_seconds = 5.0
    linger_bytes = 64 << 20

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Received since anything came of it: a header or a trailer is kept by the parser until it is whole.
        self._pending_bytes = 0
        self._in_header = False
        self._begun = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False
        # How much is still taken after a refusal.
        self._discardable = self.linger_bytes
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
        if self._refused:
            self._discardable -= len(data)
            if self._discardable < 0:
                self.transport.abort()
            return
        self._pending_bytes += len(data)
        super().data_received(data)
        self._check_pending()

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

    def shutdown(self) -> None:
        """Let who was refused read why, which takes no longer than `linger_seconds`."""
        if not self._refused:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or cycle.response_started or not cycle.more_body:
                # The answer to an earlier request may still be written, which nothing may follow.
                super().send_400_response(msg)
                return
            # Whoever waits for the rest of this body is told that nothing comes, and need not answer.
            cycle.disconnected = True
            cycle.message_event.set()
        self.refuse(400, [(b"content-type", b"text/plain; charset=utf-8")], msg.encode("ascii"))

    def refuse(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write an answer that is the connection's last, and take no request any more.

        Args:
            status: HTTP's status.
            headers: Lower case, of values that a header may have; Content-Length and Connection are added.
            body: All of it.
        """
        last = ((b"content-length", b"%d" % len(body)), (b"connection", b"close"))
        parts = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers, *last):
            parts += (name, b": ", value, b"\r\n")
        self.transport.write(b"".join((*parts, b"\r\n", body)))
        self._refused = True
        self.flow.resume_reading()
        self._unset_keepalive_if_required()
        if self._timer is not None:
            self._timer.cancel()
        # Not closed: that would wait for a client that reads nothing, and for TLS's own farewell.
        self._timer = self.loop.call_later(self.linger_seconds, self.transport.abort)
        try:
            # TLS knows no half of a connection; there the headers say it.
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:
            # The client is gone.
            self.transport.close()

    def _begin(self) -> None:
        self._pending_bytes = 0
        self._in_header = True
        self._begun = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._check_time)

    def _check_pending(self) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._pending_bytes > self.max_header_bytes:
            self.send_400_response(f"Headers must have at most {self.max_header_bytes} bytes.")
        elif not self._in_header and (self.cycle is None or self.cycle.response_complete):
            # Line feeds before a request are none, and end uvicorn's own wait for the next one.
            self._begin()

    def _check_time(self) -> None:
        # One timer serves many requests of a connection: it looks again, and is not set anew for each of them.
        self._timer = None
        if not self._in_header or self.transport.is_closing():
            return
        rest = self._begun + self.header_seconds - self.loop.time()
        if rest > 0:
            self._timer = self.loop.call_later(rest, self._check_time)
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
    parts = [STATUS_LINE[200]]
    for name, value in (*cycle.default_headers, *headers):
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"content-length: %d\r\n\r\n" % len(body))
    parts.append(body)
    cycle.transport.write(b"".join(parts))
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True


def refuse_rest(
    send: Any, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, may_stay: bool = False
) -> bool:
    """Answer a request of which more is still to come, and end its connection in a way that lets the answer arrive.

    Args:
        send: What an ASGI application is given.
        status: HTTP's status.
        headers: Lower case, of values that a header may have; Content-Length and Connection are added.
        body: All of it.
        may_stay: Leave a connection alone that stays open: the rest of the body goes by there before the next request.

    Returns:
        Whether it was written; if not, `send` is to be used.
    """
    cycle: Any = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.response_started or cycle.disconnected or not cycle.more_body:
        return False
    if may_stay and cycle.keep_alive:
        return False
    protocol: Any = getattr(cycle.on_response, "__self__", None)
    if not isinstance(protocol, GuardedProtocol):
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    protocol.refuse(status, headers, body)
    return True
