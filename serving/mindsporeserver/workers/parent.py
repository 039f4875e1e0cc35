"""`--workers N`: a light parent that owns the ports, starts N servers that share them, and keeps them alive.

The parent listens on the HTTP port and hands the socket to every worker, so that connections that wait when a worker is
killed are accepted by the others. The gRPC port is shared by SO_REUSEPORT. Neither kserve nor MindSpore nor NumPy is
imported here.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError
from mindsporeserver.models.watch import BundleWatch, follow
from mindsporeserver.ports import bind_http, reserve_grpc
from mindsporeserver.workers.attachment import Attachment, attach
from mindsporeserver.workers.fleet import Fleet
from mindsporeserver.workers.listener import ConnectionCounts
from mindsporeserver.workers.shared import fold_metrics, hold_metrics_directory, share_cores
from mindsporeserver.workers.worker import Worker, describe_exit

__all__ = ["Attachment", "Patience", "attach", "run_parent"]

logger = logging.getLogger("mindsporeserver.workers")

_COUNTS = "connections"


@dataclass(frozen=True)
class Patience:
    """How long a parent waits, in seconds.

    Args:
        first_delay: Before a worker that ended is started again; doubles with each time that it ends early.
        longest_delay: The most of that.
        crash_window, crash_count: A worker that ended this often in so long without having been ready is in a crash
            loop: the server ends when no other worker is ready, else it is tried again after `crash_delay`.
        crash_delay: See there.
        ping_interval: Between two looks at whether a worker's event loop is alive.
        hung: After which a worker that serves and gives no sign of life is killed.
        hung_busy: The same of one that starts or loads a model: imports and compilers may hold up its event loop.
        call: A worker may take to load a model.
        grace: Workers may take to finish what is in flight once they were told to end.
    """

    first_delay: float = 0.1
    longest_delay: float = 5.0
    crash_window: float = 60.0
    crash_count: int = 5
    crash_delay: float = 30.0
    ping_interval: float = 1.0
    hung: float = 10.0
    hung_busy: float = 120.0
    call: float = 600.0
    grace: float = 40.0


def run_parent(
    argv: Sequence[str],
    *,
    workers: int,
    host: str = "0.0.0.0",
    http_port: int = 8080,
    grpc_port: int | None = 8081,
    watch: BundleWatch | None = None,
    watch_seconds: float = 1.0,
    child_command: Sequence[str] = (sys.executable, "-m", "mindsporeserver"),
    patience: Patience = Patience(),
) -> int:
    """Serve by several processes until SIGTERM or SIGINT; a second signal does not wait for what is in flight.

    Args:
        argv: The flags that every worker gets.
        workers: How many.
        host: Address to listen on.
        http_port: The HTTP port; 0 takes a free one.
        grpc_port: The gRPC port; 0 takes a free one, None offers no gRPC.
        watch: What tells that a bundle changed; the workers then reload it one after the other.
        watch_seconds: How often it is asked; 0 never.
        child_command: The program that is a worker.
        patience: How long to wait for what.

    Returns:
        0 when all ended in order; the exit code of the first worker to end when none was ever ready, 2 for a mistake;
        1 for a crash loop or when a worker did not end in time; 128 + its number after a second signal.

    Raises:
        UserError: A port cannot be used.
    """
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(bind_http(host, http_port))
        grpc = stack.enter_context(reserve_grpc(host, grpc_port)) if grpc_port is not None else None
        metrics = stack.enter_context(hold_metrics_directory())
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics), **share_cores(workers, os.environ)}
        counts = stack.enter_context(ConnectionCounts.create(metrics / _COUNTS, workers))
        parent = _Parent([*child_command, *argv], environment, workers, http, grpc, metrics, counts, patience)
        return asyncio.run(parent.run(watch, watch_seconds))


class _Over(Exception):
    """The server cannot go on.

    Args:
        code: The exit code.
        message: What stderr gets to read.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Parent:
    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        workers: int,
        http: socket.socket,
        grpc: socket.socket | None,
        metrics: Path,
        counts: ConnectionCounts,
        patience: Patience,
    ) -> None:
        self._command = command
        self._environment = environment
        self._count = workers
        self._http = http
        self._grpc_port: int | None = grpc.getsockname()[1] if grpc is not None else None
        self._metrics = metrics
        self._counts = counts
        self._patience = patience
        self._fleet = Fleet(patience.call)
        self._workers: dict[int, Worker] = {}
        self._stopping = asyncio.Event()
        self._signals: list[int] = []
        self._overdue = False
        self._unburied: set[int] = set()

    async def run(self, watch: BundleWatch | None, watch_seconds: float) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._poll)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nohup has it ignored.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self._take_signal, number)
        keepers = [loop.create_task(self._keep(index)) for index in range(self._count)]
        others = [loop.create_task(self._look_after())]
        if watch is not None and watch_seconds > 0:
            others.append(loop.create_task(follow(watch, watch_seconds, self._fleet)))
        try:
            codes = await _gather(keepers, others)
        except _Over as over:
            # Several may have failed for the same reason: said once.
            print(f"Error: {over}", file=sys.stderr, flush=True)
            return over.code
        finally:
            for task in (*keepers, *others):
                task.cancel()
            await asyncio.gather(*keepers, *others, return_exceptions=True)
            await self._kill_all()
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return 1 if self._overdue or any(code not in (0, -signal.SIGTERM, -signal.SIGINT) for code in codes) else 0

    async def _keep(self, index: int) -> int:
        """Keep one worker running until the server ends; return the exit code of the last process."""
        patience, early = self._patience, 0
        crashes: collections.deque[float] = collections.deque(maxlen=patience.crash_count)
        accept_at_once = index == 0
        while not self._stopping.is_set():
            worker = self._start(index, accept_at_once=accept_at_once)
            code = await worker.wait()
            self._fleet.dismiss(worker)
            self._bury(worker)
            if self._stopping.is_set():
                return code
            if not self._fleet.ever_ready:
                raise self._fail_to_start(worker, code)
            now = time.monotonic()
            stable = worker.joined and now - worker.joined_at > patience.longest_delay
            early = 1 if stable else early + 1
            delay = min(patience.first_delay * 2 ** (early - 1), patience.longest_delay)
            if not worker.joined:
                crashes.append(now)
                if len(crashes) == patience.crash_count and now - crashes[0] < patience.crash_window:
                    if not self._fleet.members:
                        raise _Over(1, "the workers end as soon as they start: giving up")
                    delay = patience.crash_delay
            reason = worker.failure or describe_exit(code)
            logger.error("worker %d (process %d): %s; another starts in %.1f s", index, worker.pid, reason, delay)
            accept_at_once = False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
        return 0

    def _start(self, index: int, *, accept_at_once: bool) -> Worker:
        try:
            worker = Worker(
                index,
                self._command,
                self._environment,
                workers=self._count,
                http=self._http,
                counts=self._metrics / _COUNTS,
                grpc_port=self._grpc_port,
                accept_at_once=accept_at_once,
                handler=self._handle,
            )
        except OSError as error:
            raise _Over(1, f"{self._command[0]}: cannot be started: {error.strerror}") from None
        self._workers[index] = worker
        self._fleet.enlist(worker)
        return worker

    def _fail_to_start(self, worker: Worker, code: int) -> _Over:
        reason = worker.failure or f"worker {worker.index} {describe_exit(code)} before it was ready"
        return _Over(code if code >= 0 else 128 - code, reason)

    async def _handle(self, worker: Worker, action: str, arguments: Mapping[str, Any]) -> Any:
        if action == "join":
            return await self._fleet.join(worker)
        if action == "index":
            return await self._fleet.index(worker)
        if action == "load":
            return await self._fleet.load(arguments["name"])
        if action == "unload":
            return await self._fleet.unload(arguments["name"])
        raise KfpMindSporeError(f"{action}: the parent cannot do that")

    async def _look_after(self) -> None:
        """Kill workers that hang, or that do not end although they were told to."""
        patience = self._patience
        while True:
            await asyncio.sleep(patience.ping_interval)
            self._fold()
            for worker in list(self._workers.values()):
                if worker.has_ended:
                    continue
                if worker.leaving:
                    if time.monotonic() - worker.left_at > patience.grace:
                        self._overdue = True
                        logger.error("worker %d did not end within %g s: killed", worker.index, patience.grace)
                        worker.send(signal.SIGKILL)
                    continue
                # Counted in looks, not by the clock: when this process was held up itself, nobody else is to blame.
                silent = worker.channel.unanswered_pings * patience.ping_interval
                if silent > (patience.hung_busy if worker.is_busy else patience.hung):
                    logger.error("worker %d (process %d) hangs: killed", worker.index, worker.pid)
                    worker.send(signal.SIGKILL)
                worker.channel.ping()

    def _take_signal(self, number: int) -> None:
        self._signals.append(number)
        self._stopping.set()
        for worker in self._workers.values():
            if len(self._signals) > 1:
                worker.send(signal.SIGKILL)
            else:
                worker.leave()

    def _poll(self) -> None:
        for worker in self._workers.values():
            worker.poll()

    def _bury(self, worker: Worker) -> None:
        self._counts.close_worker(worker.index)
        if any(self._metrics.glob(f"*_{worker.pid}.db")):
            self._unburied.add(worker.pid)
            self._fold()

    def _fold(self) -> None:
        # One whose files are in use is tried again at the next look.
        self._unburied = {pid for pid in self._unburied if not fold_metrics(self._metrics, pid)}

    async def _kill_all(self) -> None:
        for worker in self._workers.values():
            worker.send(signal.SIGKILL)
        for worker in self._workers.values():
            await worker.wait()


async def _gather(keepers: Sequence[asyncio.Task[int]], others: Sequence[asyncio.Task[None]]) -> list[int]:
    """Wait for all keepers, or for the first task that raises."""
    pending: set[asyncio.Task[Any]] = {*keepers, *others}
    while not all(keeper.done() for keeper in keepers):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    return [keeper.result() for keeper in keepers]
