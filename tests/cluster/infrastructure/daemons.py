"""Long-running processes of one cluster, controlled by any process through a file of records."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.files import read_json, write_json
from kfp_mindspore.local.logs import read_last_lines
from kfp_mindspore.local.process import ProcessIdentity, spawn_detached


class StartError(RuntimeError):
    """A daemon exited or was not ready in time; the message holds the end of its log."""


@dataclass(frozen=True)
class Daemon:
    """A running daemon.

    Args:
        name: Its name in the cluster.
        command: Program and arguments.
        process: The process itself.
        wrapper: The nsenter process that waits for it; the same process without namespaces.
    """

    name: str
    command: Sequence[str]
    process: ProcessIdentity
    wrapper: ProcessIdentity


class Daemons:
    """Daemons of a directory, with a log each; `daemons.json` records the running ones.

    Args:
        directory: Directory of the logs and the record.
        enter: Command prefix that enters the namespaces of the daemons; it forks and waits.
    """

    def __init__(self, directory: Path, enter: Sequence[str] = ()) -> None:
        self.directory = directory
        self._enter = tuple(enter)
        self._file = directory / "daemons.json"

    def start(self, name: str, command: Sequence[str]) -> Daemon:
        """Start a daemon; its output is appended to `<name>.log`."""
        wrapper = spawn_detached([*self._enter, *command], log=self.log(name))
        process = self._get_child(name, wrapper) if self._enter else wrapper
        self._write(self._read() | {name: {
            "command": list(command), "process": process.to_dict(), "wrapper": wrapper.to_dict()
        }})  # fmt: skip
        return Daemon(name, command, process, wrapper)

    def get(self, name: str) -> Daemon:
        """Return a daemon, also one that another process started.

        Raises:
            KeyError: None has this name.
        """
        entry = self._read()[name]
        identities = (ProcessIdentity.from_dict(entry[key]) for key in ("process", "wrapper"))
        return Daemon(name, entry["command"], *identities)

    def names(self) -> list[str]:
        """Return the names of the daemons in the order of their first start."""
        return list(self._read())

    def stop(self, name: str, *, number: int = signal.SIGTERM, seconds: float = 20) -> None:
        """Send a signal to a daemon, and SIGKILL if it still runs after a timeout."""
        daemon = self.get(name)
        daemon.process.send(signal.SIGCONT)
        daemon.process.send(number)
        if not wait_for_end(daemon.process, seconds):
            daemon.process.send(signal.SIGKILL)
            wait_for_end(daemon.process, seconds)
        wait_for_end(daemon.wrapper, seconds)

    def restart(self, name: str, *, number: int = signal.SIGTERM) -> Daemon:
        """Stop a daemon and start it with the same command."""
        self.stop(name, number=number)
        return self.start(name, self.get(name).command)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Suspend a daemon with SIGSTOP until the block ends."""
        process = self.get(name).process
        process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send(signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill all daemons."""
        found = [self.get(name) for name in self.names()]
        for process in [one for daemon in found for one in (daemon.process, daemon.wrapper)]:
            process.send(signal.SIGKILL)
        for process in [one for daemon in found for one in (daemon.process, daemon.wrapper)]:
            wait_for_end(process, 20)

    def wait_ready(self, name: str, check: Callable[[], object], *, seconds: float = 300) -> None:
        """Wait until a daemon is ready.

        Args:
            name: The daemon's.
            check: Returns a true value when it is ready.
            seconds: Timeout, a multiple of the usual time for loaded machines.

        Raises:
            StartError: It exited or was not ready in time.
        """
        process = self.get(name).process
        deadline = time.monotonic() + seconds
        while not check():
            if not process.is_alive():
                raise self._explain(name, "exited")
            if time.monotonic() > deadline:
                raise self._explain(name, f"was not ready within {seconds:.0f} s")
            time.sleep(0.05)

    def check(self, *names: str) -> None:
        """Check that daemons run: a health check may have reached another process on the same port.

        Args:
            names: Names of the daemons; default all.

        Raises:
            StartError: One exited.
        """
        for name in names or self.names():
            if not self.get(name).process.is_alive():
                raise self._explain(name, "exited")

    def log(self, name: str) -> Path:
        """Return a daemon's log."""
        return self.directory / f"{name}.log"

    def _explain(self, name: str, what: str) -> StartError:
        return StartError("\n".join([f"{name} {what}:", *read_last_lines(self.log(name), 20)]))

    def _get_child(self, name: str, wrapper: ProcessIdentity) -> ProcessIdentity:
        children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and wrapper.is_alive():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for pid in children.read_text().split():
                    if identity := ProcessIdentity.of(int(pid)):
                        return identity
            time.sleep(0.01)
        raise self._explain(name, "did not start")

    def _read(self) -> dict[str, Any]:
        return dict(read_json(self._file)) if self._file.exists() else {}

    def _write(self, entries: Mapping[str, Any]) -> None:
        write_json(self._file, entries)


def wait_for_end(process: ProcessIdentity, seconds: float) -> bool:
    """Wait until all threads of a process have exited and its ports and files are released.

    The main thread may be a zombie, which ProcessIdentity treats as exited, while other threads still hold them.

    Returns:
        Whether it has exited.
    """
    deadline = time.monotonic() + seconds
    tasks = Path(f"/proc/{process.pid}/task")
    while process.is_alive() or (ProcessIdentity.of(process.pid) is None and _count(tasks) > 1):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _count(tasks: Path) -> int:
    try:
        return len(list(tasks.iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0
