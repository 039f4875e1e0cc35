"""Request bodies, read within limits on size, time and total memory, and inflated when they are compressed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mindsporeserver.errors import ClientGoneError, DeadlineExceededError, InvalidRequestError, OverloadedError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# Time and bytes for the remaining body in a refused request, so that the client can read the response.
_DISCARD_SECONDS = 5.0
_DISCARD_BYTES = 64 << 20
# Most members in a gzip body: bgzip writes one per 64 KiB, and each costs as much as 50 KiB of data.
_MAX_MEMBERS = 1024
# What one call in a thread inflates; cancellation and deadline take effect between two calls.
_INPUT_BYTES, _OUTPUT_BYTES = 64 << 10, 1 << 20


class Receiver:
    """An ASGI request's `receive`, with whether the body has been received to the end."""

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
    """Request limits.

    Args:
        max_bytes: Most bytes in a body, also once inflated.
        max_buffered_bytes: Most bytes in all bodies that are read or computed; over it requests are refused.
        body_seconds: How long a body may take to arrive.
        timeout_seconds: How long a request may wait for the graph; 0 for no limit.
    """

    max_bytes: int = 32 << 20
    max_buffered_bytes: int = 512 << 20
    body_seconds: float = 30.0
    timeout_seconds: float = 60.0


class BodyReader:
    """Reads one process's bodies.

    Args:
        limits: See `RequestLimits`.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self.buffered_bytes = 0
        # A separate pool: in asyncio's default pool, metrics would wait for all clients' bodies.
        self._inflating = ThreadPoolExecutor(os.cpu_count(), "inflate")

    async def read(self, receive: Receiver) -> bytes:
        """Return a body; the bytes count as buffered until `release`.

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

    async def inflate(self, body: bytes, encoding: str, deadline: float | None = None) -> bytes:
        """Return a compressed body decompressed, which counts as buffered instead of the compressed one.

        Args:
            body: What `read` returned.
            encoding: The Content-Encoding value.
            deadline: `time.monotonic()` after which the request is refused.

        Raises:
            InvalidRequestError: The encoding is not supported (415), the data is damaged or inflates to too much.
            DeadlineExceededError: The deadline has passed.
            OverloadedError: All bodies together are too large.
        """
        inflater = _Inflater(body, encoding.strip().lower())
        loop = asyncio.get_running_loop()
        pieces: list[bytes] = []
        size = 0
        try:
            while not inflater.is_complete:
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineExceededError
                piece = await loop.run_in_executor(self._inflating, inflater.read)
                if size + len(piece) > self._limits.max_bytes:
                    raise InvalidRequestError(
                        f"body: must have at most {self._limits.max_bytes} bytes once it is inflated", status=413
                    )
                self._reserve(size + len(piece), len(piece))
                size += len(piece)
                pieces.append(piece)
        except zlib.error as error:
            self.release(size)
            raise InvalidRequestError(f"body: not valid {encoding} data: {error}") from None
        except BaseException:
            self.release(size)
            raise
        self.release(len(body))
        return b"".join(pieces)

    def release(self, size: int) -> None:
        """Stop counting a body of `size` bytes."""
        self.buffered_bytes -= size

    async def discard(self, receive: Receiver) -> None:
        """Read a refused body's rest, for 5 s and 64 MiB at most."""
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


class _Inflater:
    """Decompresses a body piece by piece, in bounded time each."""

    def __init__(self, body: bytes, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise InvalidRequestError(
                f"Content-Encoding: must be gzip, deflate or identity, got {encoding!r}", status=415
            )
        # RFC 9110 means zlib data by deflate; some clients send bare deflate data.
        is_bare = encoding == "deflate" and not _is_zlib(body)
        self._bits = -15 if is_bare else 31 if encoding.endswith("gzip") else 15
        self._body = memoryview(body)
        self._position = 0
        self._members = 0
        self._member = zlib.decompressobj(self._bits)
        self.is_complete = not body

    def read(self) -> bytes:
        """Return the next piece; empty at a member's end.

        Raises:
            zlib.error: The data is damaged or incomplete.
            InvalidRequestError: There are too many members.
        """
        # zlib copies what it has not consumed: from a piece, not from the whole rest.
        source = self._body[self._position : self._position + _INPUT_BYTES]
        member = self._member
        piece = member.decompress(source, _OUTPUT_BYTES)
        self._position += len(source) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            self._members += 1
            self.is_complete = self._position == len(self._body)
            if not self.is_complete and self._members == _MAX_MEMBERS:
                raise InvalidRequestError(f"body: must have at most {_MAX_MEMBERS} compressed members", status=413)
            self._member = zlib.decompressobj(self._bits)
        elif not source and not piece:
            raise zlib.error("incomplete")
        return piece


def _is_zlib(body: bytes) -> bool:
    return len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0


async def _discard(receive: Receiver) -> None:
    size = 0
    while not receive.is_complete and size <= _DISCARD_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
