"""The channel between the parent of several workers and each of them: JSON lines over a pair of Unix sockets.

Either side asks the other to do something and gets an answer, by numbers, so that questions may overlap. Errors of
`kfp_mindspore.errors` cross the channel as what they are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from kfp_mindspore import errors
from kfp_mindspore.errors import KfpMindSporeError, WaitTimeoutError

# An index of thousands of models is one line.
_LINE_BYTES = 1 << 24
# The errors that can be made again from a message and a hint; others arrive as the nearest of these above them.
_PLAIN_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, KfpMindSporeError)
    and name not in ("ValidationError", "MissingExtraError")
}

Handler = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class Control(Protocol):
    """What the routes of the model repository act on: this process alone, or all workers."""

    async def load(self, name: str) -> None:
        """Load a model, or load it again; a failure leaves what was served untouched."""

    async def unload(self, name: str) -> None:
        """Serve a model no longer."""

    async def index(self) -> list[dict[str, str]]:
        """Return name, version, state and reason of each model."""


class Serving(Control, Protocol):
    """What a worker's repository offers its parent."""

    async def reload(self, name: str, version: str = "") -> None:
        """Load what is in a model's directory now; a failure leaves what was served untouched."""


@runtime_checkable
class Revertible(Protocol):
    """A repository that keeps what `load` or `reload` replaced until it is told that all workers have the new one."""

    async def settle(self, name: str) -> None:
        """Forget what was replaced."""

    async def revert(self, name: str) -> None:
        """Serve again what was replaced."""


class ChannelClosedError(KfpMindSporeError):
    """The process at the other end is gone, or going."""


class Channel:
    """One end of the channel.

    Args:
        end: A connected socket, which becomes the channel's own.
        handler: Called with what the other end asks to be done and its arguments; returns JSON types. What it raises
            is raised at the other end.
        on_tell: Called with what the other end tells without expecting an answer.
    """

    def __init__(
        self, end: socket.socket, handler: Handler, on_tell: Callable[[str, Mapping[str, Any]], None] | None = None
    ) -> None:
        self._socket = end
        self._handler = handler
        self._on_tell = on_tell
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._opened = asyncio.Event()
        self.unanswered_pings = 0

    async def run(self) -> None:
        """Read and answer until the other end is closed; then whoever waits for an answer gets ChannelClosedError."""
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=_LINE_BYTES)
            self._opened.set()
            while (message := await _read_message(reader)) is not None:
                self._receive(message)
        finally:
            self.close()

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelClosedError("the process ended before it answered"))
        self._waiting.clear()
        self._opened.set()

    async def call(self, action: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Have the other end do something; waits until `run` has begun.

        Args:
            action: What to do.
            timeout: Seconds to wait for the answer; default for ever.
            **arguments: JSON types.

        Returns:
            What its handler returned.

        Raises:
            ChannelClosedError: The other end is gone, or went before it answered.
            WaitTimeoutError: No answer in time; the other end may still do it.
            KfpMindSporeError: What its handler raised.
        """
        await self._opened.wait()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "do": action, **({"with": arguments} if arguments else {})})
            await asyncio.wait((answer,), timeout=timeout)
            if not answer.done():
                raise WaitTimeoutError(f"{action}: no answer within {timeout:g} s")
            return answer.result()
        finally:
            self._waiting.pop(number, None)

    def tell(self, what: str, **arguments: Any) -> None:
        """Tell the other end something, if it is still there."""
        if not self._closed and self._writer is not None:
            self._send({"tell": what, **({"with": arguments} if arguments else {})})

    def ping(self) -> None:
        """Ask for a sign of life; `unanswered_pings` is 0 again once the other end's event loop gave one."""
        if self._writer is not None and not self._closed:
            if not self.unanswered_pings:
                self._send({"ping": 1})
            self.unanswered_pings += 1

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._closed or self._writer is None:
            raise ChannelClosedError("the process at the other end is gone")
        self._writer.write(json.dumps(message).encode() + b"\n")

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "do" in message:
            task = asyncio.ensure_future(self._handler(message["do"], message.get("with", {})))
            # The loop itself holds tasks weakly.
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._answer(message["id"], done))
        elif "tell" in message:
            if self._on_tell is not None:
                self._on_tell(message["tell"], message.get("with", {}))
        elif "ping" in message:
            self._send({"pong": 1})
        elif "pong" in message:
            self.unanswered_pings = 0
        elif (answer := self._waiting.get(message["id"])) is not None and not answer.done():
            if "error" in message:
                answer.set_exception(_revive(message["error"]))
            else:
                answer.set_result(message.get("result"))

    def _answer(self, number: int, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        # Asked for in any case: what nobody asks for is logged as a bug, and here it may be that the other end is gone.
        error = task.exception()
        if not self._closed:
            said = {"result": task.result()} if error is None else {"error": describe_error(error)}
            self._send({"id": number, **said})
        if error is not None and not isinstance(error, KfpMindSporeError):
            # A bug: whoever asked gets a word, the log gets all of it.
            asyncio.get_running_loop().call_exception_handler({"message": "control channel", "exception": error})


async def _read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message, or None when the other end is closed, be it in the middle of a line."""
    try:
        line = await reader.readline()
    except (ConnectionError, ValueError):
        return None
    return json.loads(line) if line.endswith(b"\n") else None


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON types, for `Channel` to raise it at the other end."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if isinstance(error, KfpMindSporeError):
        return {"kinds": kinds, "message": error.message, "hint": error.hint, "log": list(error.log)}
    return {"kinds": kinds, "message": f"{type(error).__name__}: {error}", "hint": "", "log": []}


def _revive(value: Mapping[str, Any]) -> KfpMindSporeError:
    kind = next((_PLAIN_ERRORS[name] for name in value["kinds"] if name in _PLAIN_ERRORS), KfpMindSporeError)
    return kind(value["message"], hint=value["hint"], log=value["log"])
