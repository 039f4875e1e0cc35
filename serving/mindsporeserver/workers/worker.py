"""One worker process as its parent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindsporeserver.workers.attachment import Place
from mindsporeserver.workers.control import Channel

logger = logging.getLogger("mindsporeserver.workers")


class Worker:
    """A process that was started, and the channel to it.

    Args:
        index: Which of the workers.
        command: Program and arguments.
        environment: The whole environment, without the place.
        workers: How many there are.
        http: The listening socket.
        counts: The file of `ConnectionCounts`.
        grpc_port: The reserved port, or None.
        accept_at_once: Whether it accepts before it is ready.
        handler: What it may ask for: called with this worker, the action and its arguments.

    Raises:
        OSError: It could not be started.
    """

    def __init__(
        self,
        index: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        workers: int,
        http: socket.socket,
        counts: Path,
        grpc_port: int | None,
        accept_at_once: bool,
        handler: Callable[[Worker, str, Mapping[str, Any]], Awaitable[Any]],
    ) -> None:
        self.index = index
        self.accepts = accept_at_once
        self.joined = False
        self.leaving = False
        self.failure = ""
        self.joined_at = 0.0
        self.left_at = 0.0
        self._calls = 0
        ours, theirs = socket.socketpair()
        with theirs:
            place = Place(
                index, workers, os.getpid(), http.fileno(), theirs.fileno(), str(counts), grpc_port, accept_at_once
            )
            # A session of its own: Ctrl-C in a terminal reaches the parent alone, which ends the workers in order; and
            # Linux shares the cores of a busy machine out among sessions first.
            try:
                self.process = subprocess.Popen(
                    list(command),
                    env={**environment, **place.to_environment()},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(place.http_fd, place.control_fd),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self.pid = self.process.pid
        self._ended = asyncio.Event()
        self.channel = Channel(ours, lambda action, arguments: handler(self, action, arguments), self._listen)
        self._listener = asyncio.get_running_loop().create_task(self.channel.run())

    @property
    def is_busy(self) -> bool:
        """Whether it starts or loads a model, so that its event loop may be held up for long."""
        return not self.joined or self._calls > 0

    async def call(self, action: str, timeout: float, **arguments: Any) -> Any:
        """Have it do something; see `Channel.call`."""
        self._calls += 1
        try:
            return await self.channel.call(action, timeout=timeout, **arguments)
        finally:
            self._calls -= 1

    def count_in(self) -> None:
        """Note that it serves what the others serve."""
        self.joined, self.joined_at = True, time.monotonic()

    def let_accept(self) -> None:
        """Tell it to accept connections, once."""
        if not self.accepts:
            self.accepts = True
            self.channel.tell("accept")

    @property
    def has_ended(self) -> bool:
        """Whether `poll` noticed that it ended."""
        return self._ended.is_set()

    def poll(self) -> None:
        """Notice that it ended."""
        if self.process.poll() is not None:
            self._ended.set()

    async def wait(self) -> int:
        """Return its exit code when it ended and what it said last was read."""
        await self._ended.wait()
        await asyncio.wait((self._listener,))
        code = self.process.returncode
        assert code is not None
        return code

    def send(self, number: int) -> None:
        """Send a signal, unless it ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def retire(self, reason: str) -> None:
        """Let it finish what is in flight and end, so that another takes its place."""
        logger.error("worker %d (process %d) is replaced: %s", self.index, self.pid, reason)
        self.leave()

    def leave(self) -> None:
        """Ask it to finish what is in flight and to end."""
        if not self.leaving:
            self.leaving, self.left_at = True, time.monotonic()
            self.send(signal.SIGTERM)

    def _listen(self, what: str, arguments: Mapping[str, Any]) -> None:
        if what == "failure":
            self.failure = str(arguments["message"])


def describe_exit(code: int) -> str:
    """Say how a process ended: by an exit code, or by a signal where the code is negative, as subprocess has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
