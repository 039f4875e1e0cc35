"""Accepts from a listening socket that several workers share, so that each gets its share of the connections.

An event loop's own server accepts all that wait whenever it wakes up: of 32 clients that connect at once one worker
gets most, often all, and keeps them, while the other worker's core is idle. Here a worker takes one connection at a
time, and only while no other has fewer; otherwise it gives the others a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

logger = logging.getLogger("mindsporeserver.workers")

# What a worker with fewer connections needs to wake up; one that is held up costs the others this much a connection.
_YIELD_SECONDS = 0.001
# The process or the machine is out of descriptors or memory.
_PAUSE_SECONDS = 0.5
_COMPARE_SECONDS = 0.25
_CLOSED = -1


class ConnectionCounts:
    """How many connections each worker has, in memory that all of them share.

    Args:
        path: A file that `create` made.
    """

    def __init__(self, path: Path | str) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._view = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, path: Path, workers: int) -> ConnectionCounts:
        """Make the file, with every worker closed."""
        path.write_bytes(_CLOSED.to_bytes(8, sys.byteorder, signed=True) * workers)
        return cls(path)

    def set(self, index: int, count: int) -> None:
        """Say how many connections a worker has."""
        self._view[index] = count

    def close_worker(self, index: int) -> None:
        """Say that a worker accepts nothing."""
        self._view[index] = _CLOSED

    def find_lowest(self) -> int:
        """Return the fewest connections that a worker that accepts has; 0 when none accepts."""
        return min((count for count in self._view if count != _CLOSED), default=0)

    def close(self) -> None:
        """Give the memory back."""
        self._view.release()
        self._memory.close()

    def __enter__(self) -> ConnectionCounts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Listener:
    """Accepts until it is closed; stands where asyncio's `Server` would.

    Args:
        listening: The shared socket.
        make_protocol: Makes the protocol of one connection.
        count_open: Returns how many connections have a protocol now.
        counts: What the workers share.
        index: Which of them this is.
        context: For TLS.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        count_open: Callable[[], int],
        counts: ConnectionCounts,
        index: int,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._count_open = count_open
        self._counts = counts
        self._index = index
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._surplus = 0
        self._resume()
        self._compare()

    def take_surplus(self) -> bool:
        """Tell whether the connection of a request that is being answered should be closed after the answer.

        After another worker was restarted, clients that keep their connections would stay here for ever. Those that
        are told to close connect again, to the worker with the fewest. For servers to call at every request.
        """
        if not self._surplus:
            return False
        self._surplus -= 1
        return True

    def close(self) -> None:
        """Accept no more; connections stay. Idempotent."""
        if not self._closed:
            self._pause()
            self._comparing.cancel()
            self._surplus = 0
            self._closed = True
            self._counts.close_worker(self._index)

    async def wait_closed(self) -> None:
        """Return when each connection that was accepted got its protocol, or was given up."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _publish(self) -> int:
        count = self._count_open() + len(self._opening)
        self._counts.set(self._index, count)
        return count

    def _compare(self) -> None:
        more = self._publish() - self._counts.find_lowest()
        # Half of the difference makes both equal. One more, or a few among many, come and go by themselves.
        self._surplus = more // 2 if more > max(1, self._count_open() // 4) else 0
        self._comparing = self._loop.call_later(_COMPARE_SECONDS, self._compare)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listening.fileno(), self._take_turn)

    def _pause(self, seconds: float = 0.0, then: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        else:
            self._loop.remove_reader(self._listening.fileno())
        if then is not None:
            self._timer = self._loop.call_later(seconds, then)

    def _take_turn(self) -> None:
        if self._publish() > self._counts.find_lowest():
            self._pause(_YIELD_SECONDS, self._insist)
        else:
            self._accept()

    def _insist(self) -> None:
        """Accept although another has fewer: it did not when it could."""
        self._resume()
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another worker was quicker, or the client has gone.
            return
        except OSError as error:
            logger.error("no connection can be accepted for %g s: %s", _PAUSE_SECONDS, error.strerror)
            self._pause(_PAUSE_SECONDS, self._resume)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        self._publish()

    async def _open(self, connection: socket.socket) -> None:
        # A client that leaves, or fails, during the TLS handshake: uvloop and asyncio close the connection.
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._context)
