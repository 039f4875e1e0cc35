"""`--workers N`: identical server processes that share the ports by SO_REUSEPORT, restarted when they die.

The parent imports neither MindSpore nor NumPy. It passes the command line and one end of a socket pair to each worker.
A worker writes a byte when the models are loaded, and shuts down when the parent's end is closed. The parent writes a
byte when a worker may listen: worker 0 listens first, and no other until it is ready, since clients cannot choose a
worker, and a ready one would make the whole server seem ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kfp_mindspore.local.cores import count_cores
from mindsporeserver.ports import bind_port, check_port

logger = logging.getLogger(__name__)

_VARIABLE = "MINDSPORESERVER_WORKER"
# Each of these libraries starts a thread per machine core, in every worker.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_DELAYS = (0.1, 30.0)
# A worker that ran this long was no failed start: the next delay is the shortest again.
_STABLE_SECONDS = 60.0
_MOST_FAILURES = 5
# What a worker may take longer than its grace period.
_MARGIN_SECONDS = 10.0


@dataclass(frozen=True)
class WorkerLink:
    """A worker's side of the connection to the parent.

    Args:
        connection: Readable when the parent has ended.
        listens_early: Whether to listen before the models are loaded, as one process must for liveness probes.
        opened: Set when the worker may listen, after `follow_parent`.
    """

    connection: socket.socket
    listens_early: bool
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def from_environment(cls) -> WorkerLink | None:
        """Return this process's link, or None when it is no worker."""
        descriptor, _, early = os.environ.pop(_VARIABLE, "").partition(":")
        return cls(socket.socket(fileno=int(descriptor)), early == "1") if descriptor else None

    def report_ready(self) -> None:
        """Report to the parent that the models are loaded."""
        with contextlib.suppress(OSError):
            self.connection.send(b"r")

    def follow_parent(self, on_exit: Callable[[], None]) -> None:
        """Set `opened` when the worker may listen; call `on_exit` in the running loop when the parent has ended."""
        loop = asyncio.get_running_loop()

        def notify() -> None:
            try:
                is_open = bool(self.connection.recv(1))
            except OSError:
                is_open = False
            if is_open:
                self.opened.set()
            else:
                loop.remove_reader(self.connection)
                on_exit()

        loop.add_reader(self.connection, notify)


def run_workers(
    argv: Sequence[str],
    *,
    workers: int,
    host: str,
    http_port: int,
    grpc_port: int | None,
    grace_period: float,
    management_port: int | None = None,
    command: Sequence[str] = (sys.executable, "-m", "mindsporeserver"),
) -> int:
    """Serve by several processes until SIGTERM or SIGINT; a second signal kills them.

    Args:
        argv: Every worker's flags.
        workers: Process count.
        host: Address to listen on.
        http_port: The HTTP port.
        grpc_port: The gRPC port, or None without gRPC.
        grace_period: Seconds that a worker has to finish accepted requests.
        management_port: The management port, or None without one.
        command: A worker's program.

    Returns:
        0 when all workers ended in order; the first one's exit code when none was ever ready; else 1.

    Raises:
        UserError: A port cannot be used.
    """
    with contextlib.ExitStack() as stack:
        ports = {"--http_port": http_port, "--grpc_port": grpc_port, "--management_port": management_port}
        for flag, port in ports.items():
            if port is not None:
                check_port(flag, host, port)
                # Bound and not listening: the kernel gives the port to no outgoing connection while no worker runs.
                stack.enter_context(bind_port(flag, host, port, shared=True))
        environment = {**os.environ, **share_cores(workers, os.environ)}
        return asyncio.run(_Pool([*command, *argv], environment, grace_period).run(workers))


class _Pool:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], grace_period: float) -> None:
        self._command = command
        self._environment = environment
        self._grace_period = grace_period
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._links: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        self._is_open = False
        self._was_ready = False
        self._stopping = asyncio.Event()
        self._is_killing = False

    async def run(self, workers: int) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        keepers = [loop.create_task(self._keep(index)) for index in range(workers)]
        await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
        if not self._stopping.is_set():
            self._stop()
        _, late = await asyncio.wait(keepers, timeout=self._grace_period + _MARGIN_SECONDS)
        if late:
            logger.error("%d workers did not end within %g s: killed", len(late), self._grace_period)
            self._stop()
            await asyncio.wait(late)
        codes = [keeper.result() for keeper in keepers]
        return next((code if code > 0 else 1 for code in codes if code not in (0, -signal.SIGTERM)), 0)

    async def _keep(self, index: int) -> int:
        """Keep one worker running; return the exit code when the server ends or the worker cannot start."""
        delay, failures = _DELAYS[0], 0
        listens_early = index == 0
        while True:
            began = time.monotonic()
            code = await self._run_worker(index, listens_early)
            was_ready = index in self._ready
            self._ready.discard(index)
            if self._stopping.is_set():
                return code
            if index == 0:
                self._open()
            if not self._was_ready:
                return code or 1
            failures = 0 if was_ready else failures + 1
            if failures >= _MOST_FAILURES and not self._ready:
                logger.error("worker %d ended %d times before it was ready, and no other is", index, failures)
                return 1
            delay = _DELAYS[0] if time.monotonic() - began > _STABLE_SECONDS else delay
            logger.error("worker %d ended with exit code %d; it is started again in %.1f s", index, code, delay)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
                return 0
            delay, listens_early = min(2 * delay, _DELAYS[1]), False

    async def _run_worker(self, index: int, listens_early: bool) -> int:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    env={**self._environment, _VARIABLE: f"{theirs.fileno()}:{int(listens_early)}"},
                    pass_fds=[theirs.fileno()],
                    # A terminal's Ctrl-C reaches the parent only, which forwards it once.
                    start_new_session=True,
                )
            self._processes[index], self._links[index] = process, ours
            if self._is_open:
                self._permit(ours)
            if self._stopping.is_set():
                self._signal(process)
            ours.setblocking(False)
            loop.add_reader(ours, self._read, index, ours)
            try:
                return await process.wait()
            finally:
                loop.remove_reader(ours)
                del self._processes[index], self._links[index]

    def _read(self, index: int, connection: socket.socket) -> None:
        try:
            is_ready = bool(connection.recv(1))
        except ConnectionResetError:  # The worker ended before it read that it may listen.
            is_ready = False
        if is_ready:
            self._ready.add(index)
            self._was_ready = True
            if index == 0:
                self._open()
        else:
            asyncio.get_running_loop().remove_reader(connection)

    def _open(self) -> None:
        """Let all workers listen, now and when they are restarted."""
        if not self._is_open:
            self._is_open = True
            for link in self._links.values():
                self._permit(link)

    @staticmethod
    def _permit(link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link.send(b"o")

    def _stop(self) -> None:
        self._is_killing = self._stopping.is_set()
        self._stopping.set()
        for process in self._processes.values():
            self._signal(process)

    def _signal(self, process: asyncio.subprocess.Process) -> None:
        # asyncio's send_signal polls, and an exit code that it finds does not reach `wait`, which returns 255.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL if self._is_killing else signal.SIGTERM)


def share_cores(workers: int, environment: Mapping[str, str], cores: float | None = None) -> dict[str, str]:
    """Return the variables that give each worker the share of the cores, except variables that are already set.

    Args:
        workers: Worker count.
        environment: The variables that are set.
        cores: Core count; default those that this process may use.
    """
    share = max(1, int((count_cores() if cores is None else cores) / workers))
    return {name: str(share) for name in _THREADS if name not in environment}
