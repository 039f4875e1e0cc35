"""Request bodies, read within limits of size, time and total memory, and inflated when they are compressed."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from mindsporeserver.errors import ClientGoneError, InvalidRequestError, OverloadedError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# Time and bytes for the rest of a body whose request is refused, so that the client can read the response.
_DISCARD_SECONDS = 5.0
_DISCARD_BYTES = 64 << 20


class Receiver:
    """The `receive` of an ASGI request, with whether its body has been received to the end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def __call__(self) -> Message:
        """Return the next message."""
        message = await self._receive()
        self.is_complete = not message.get("more_body", False)
        return message


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a request.

    Args:
        max_bytes: Most bytes of a body, also once inflated.
        max_buffered_bytes: Most bytes of all bodies that are read or computed; over it requests are refused.
        body_seconds: How long a body may take to arrive.
        timeout_seconds: How long a request may wait for the graph; 0 for no limit.
    """

    max_bytes: int = 32 << 20
    max_buffered_bytes: int = 512 << 20
    body_seconds: float = 30.0
    timeout_seconds: float = 60.0


class BodyReader:
    """Reads the bodies of one process.

    Args:
        limits: See `RequestLimits`.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self.buffered_bytes = 0

    async def read(self, receive: Receiver) -> bytes:
        """Return a body; its bytes count as buffered until `release`.

        Raises:
            ClientGoneError: The client has disconnected.
            InvalidRequestError: It is too large (413) or too slow (408).
            OverloadedError: All bodies together are too large.
        """
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            self._reserve(len(body), len(body))
            return body
        try:
            return await asyncio.wait_for(self._read_pieces(message, receive), self._limits.body_seconds)
        except asyncio.TimeoutError:
            raise InvalidRequestError(f"body: must arrive within {self._limits.body_seconds:g} s", status=408) from None

    async def inflate(self, body: bytes, encoding: str) -> bytes:
        """Return a compressed body decompressed; the difference counts as buffered.

        Args:
            body: What `read` returned.
            encoding: The value of Content-Encoding.

        Raises:
            InvalidRequestError: The encoding is not supported (415), the data is damaged or inflates to too much.
        """
        try:
            inflated = await asyncio.to_thread(_inflate, body, encoding.strip().lower(), self._limits.max_bytes)
        except zlib.error as error:
            raise InvalidRequestError(f"body: not valid {encoding} data: {error}") from None
        self._reserve(len(inflated), len(inflated) - len(body))
        return inflated

    def release(self, size: int) -> None:
        """Stop counting a body of `size` bytes."""
        self.buffered_bytes -= size

    async def discard(self, receive: Receiver) -> None:
        """Read the rest of a refused body, for 5 s and 64 MiB at most."""
        if receive.is_complete:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_discard(receive), _DISCARD_SECONDS)

    async def _read_pieces(self, message: Message, receive: Receiver) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                piece = message.get("body", b"")
                self._reserve(size + len(piece), len(piece))
                size += len(piece)
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
                message = await receive()
        except BaseException:
            self.release(size)
            raise

    def _reserve(self, size: int, more: int) -> None:
        limits = self._limits
        if size > limits.max_bytes:
            raise InvalidRequestError(f"body: must have at most {limits.max_bytes} bytes", status=413)
        if self.buffered_bytes + more > limits.max_buffered_bytes:
            raise OverloadedError(self.buffered_bytes, limits.max_buffered_bytes, what="bytes")
        self.buffered_bytes += more


def _inflate(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise InvalidRequestError(f"Content-Encoding: must be gzip, deflate or identity, got {encoding!r}", status=415)
    # RFC 9110 means zlib data by deflate; some clients send bare deflate data.
    is_bare = encoding == "deflate" and not _is_zlib(body)
    pieces: list[bytes] = []
    size = 0
    while body:
        inflater = zlib.decompressobj(-15 if is_bare else 31 if encoding.endswith("gzip") else 15)
        piece = inflater.decompress(body, limit + 1 - size)
        size += len(piece)
        if size > limit:
            raise InvalidRequestError(f"body: must have at most {limit} bytes once it is inflated", status=413)
        if not inflater.eof:
            raise zlib.error("incomplete")
        pieces.append(piece)
        # A gzip file may have several members.
        body = inflater.unused_data
    return b"".join(pieces)


def _is_zlib(body: bytes) -> bool:
    return len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0


async def _discard(receive: Receiver) -> None:
    size = 0
    while not receive.is_complete and size <= _DISCARD_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
