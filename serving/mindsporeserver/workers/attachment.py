"""A worker's side of `--workers`: what its parent gave it, and the parent's word on what to load and when to accept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.local.process import die_with_parent
from mindsporeserver.workers.control import Channel, Revertible, Serving
from mindsporeserver.workers.listener import ConnectionCounts, Listener

VARIABLE = "MINDSPORESERVER_WORKER"


@dataclass(frozen=True)
class Place:
    """What a parent tells a worker by its environment.

    Args:
        index: Which of the workers, from 0.
        workers: How many there are.
        parent: Process number of the parent.
        http_fd: The listening HTTP socket, shared by all workers.
        control_fd: This worker's end of the control channel.
        counts: The file of `ConnectionCounts`.
        grpc_port: The port to listen on with SO_REUSEPORT; None without gRPC.
        accept_at_once: Whether to accept connections before the models are loaded. Only the first worker of a new
            server does, to answer that it is alive; the others, and every restarted one, wait for the parent's word.
    """

    index: int
    workers: int
    parent: int
    http_fd: int
    control_fd: int
    counts: str
    grpc_port: int | None
    accept_at_once: bool

    def to_environment(self) -> dict[str, str]:
        """Return the variable that holds this."""
        return {VARIABLE: json.dumps(asdict(self))}


def attach(environment: MutableMapping[str, str] | None = None) -> Attachment | None:
    """Take the place that a parent prepared for this process; call once, as early as possible.

    From here on this process does not survive its parent.

    Args:
        environment: Default `os.environ`. The variable is removed: it is not meant for processes below this one.

    Returns:
        None when this process was not started by such a parent.
    """
    environment = os.environ if environment is None else environment
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    place = Place(**json.loads(text))
    die_with_parent(place.parent)
    return Attachment(place)


class Attachment:
    """A worker's place among others.

        attachment = attach()
        loop.create_task(attachment.serve(repository))    # at once: it also answers that this process is not hung
        load_everything()
        await attachment.report_ready()                   # now the same models are served here as by the others
        await attachment.wait_to_accept()                 # before the first line above where `accept_at_once`
        listener = attachment.listen(make_protocol, count_open=lambda: len(connections))

    Args:
        place: What the parent prepared.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.http_socket = _adopt(place.http_fd)
        self._end = _adopt(place.control_fd)
        self._channel = Channel(self._end, self._handle, self._listen)
        self._may_accept = asyncio.Event()
        if place.accept_at_once:
            self._may_accept.set()
        self._repository: Serving | None = None
        self.control = WorkerControl(self)

    async def serve(self, repository: Serving) -> None:
        """Do what the parent asks for until it is gone; then end this process as SIGTERM does."""
        self._repository = repository
        await self._channel.run()
        os.kill(os.getpid(), signal.SIGTERM)

    async def call(self, action: str, **arguments: Any) -> Any:
        """Ask the parent; see `Channel.call`. Waits until `serve` has begun."""
        return await self._channel.call(action, **arguments)

    async def report_ready(self) -> None:
        """Say that the models of the command line are loaded and warm, and that this worker itself says so too.

        Returns when the parent has had loaded and unloaded here what clients had loaded and unloaded before, and
        counts this worker among those that serve.
        """
        await self.call("join")

    async def wait_to_accept(self) -> None:
        """Return when this worker may listen: at once, or when it serves what the others serve."""
        await self._may_accept.wait()

    def listen(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        count_open: Callable[[], int],
        context: ssl.SSLContext | None = None,
    ) -> Listener:
        """Accept HTTP connections, as many as the other workers do; call when `wait_to_accept` returned.

        Args:
            make_protocol: Makes the protocol of one connection.
            count_open: Returns how many connections have a protocol now.
            context: For TLS.

        Returns:
            What has asyncio.Server's `close` and `wait_closed`, and tells which connections to give away.
        """
        return Listener(
            self.http_socket,
            make_protocol,
            count_open=count_open,
            counts=ConnectionCounts(self.place.counts),
            index=self.place.index,
            context=context,
        )

    def report_failure(self, error: KfpMindSporeError) -> None:
        """Have the parent print why this process is about to end: once, whatever the number of workers.

        Needs no event loop. The caller then ends the process with `error.exit_code`.
        """
        line = json.dumps({"tell": "failure", "with": {"message": str(error)}}).encode() + b"\n"
        # Not through the loop's transport: it would still hold the line when the process ends.
        with contextlib.suppress(OSError):
            self._end.setblocking(True)
            self._end.sendall(line)

    async def _handle(self, action: str, arguments: Mapping[str, Any]) -> Any:
        repository = self._repository
        assert repository is not None
        if action == "index":
            return await repository.index()
        name = arguments["name"]
        if action == "load":
            return await repository.load(name)
        if action == "unload":
            return await repository.unload(name)
        if action == "reload":
            return await repository.reload(name)
        if action in ("settle", "revert") and isinstance(repository, Revertible):
            return await (repository.settle(name) if action == "settle" else repository.revert(name))
        raise KfpMindSporeError(f"{action}: this worker cannot do that")

    def _listen(self, what: str, _: Mapping[str, Any]) -> None:
        if what == "accept":
            self._may_accept.set()


class WorkerControl:
    """Acts on all workers, by asking the parent: a `Control`.

    Args:
        attachment: This worker's.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    async def load(self, name: str) -> None:
        """Load a model in every worker, or in none: when one cannot, the others return to what they had."""
        await self._attachment.call("load", name=name)

    async def unload(self, name: str) -> None:
        """Unload a model in every worker."""
        await self._attachment.call("unload", name=name)

    async def index(self) -> list[dict[str, str]]:
        """Return name, version, state and reason of each model; it is READY when it is in every worker."""
        answer: list[dict[str, str]] = await self._attachment.call("index")
        return answer


def _adopt(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    adopted = socket.socket(fileno=descriptor)
    adopted.setblocking(False)
    return adopted
