"""The long-running processes of one cluster: started, found again by another process, paused, stopped, restarted."""

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
    """A daemon ended, or was not ready in time; the message has the end of its log."""


@dataclass(frozen=True)
class Daemon:
    """One process and how it was started.

    Args:
        name: Its name in the cluster.
        command: Program and arguments.
        process: The process itself.
        wrapper: The process that entered the namespaces for it and waits for it; the same one where there are none.
    """

    name: str
    command: Sequence[str]
    process: ProcessIdentity
    wrapper: ProcessIdentity


class Daemons:
    """The daemons of a directory, with a log each; what runs is kept in `daemons.json`.

    Args:
        directory: Where their logs and the record are.
        enter: Command that each is started by, when they live in namespaces of their own; it forks and waits.
    """

    def __init__(self, directory: Path, enter: Sequence[str] = ()) -> None:
        self.directory = directory
        self._enter = tuple(enter)
        self._file = directory / "daemons.json"

    def start(self, name: str, command: Sequence[str]) -> Daemon:
        """Start a daemon; its output is appended to `<name>.log`."""
        wrapper = spawn_detached([*self._enter, *command], log=self.log(name))
        process = self._find_child(name, wrapper) if self._enter else wrapper
        self._write(self._read() | {name: {
            "command": list(command), "process": process.to_dict(), "wrapper": wrapper.to_dict()
        }})  # fmt: skip
        return Daemon(name, command, process, wrapper)

    def find(self, name: str) -> Daemon:
        """Return a daemon that was started, also by another process.

        Raises:
            KeyError: None has this name.
        """
        entry = self._read()[name]
        identities = (ProcessIdentity.from_dict(entry[key]) for key in ("process", "wrapper"))
        return Daemon(name, entry["command"], *identities)

    def names(self) -> list[str]:
        """Return the names of the daemons, in the order in which they were started first."""
        return list(self._read())

    def stop(self, name: str, *, number: int = signal.SIGTERM, seconds: float = 20) -> None:
        """Stop a daemon: a signal, and SIGKILL to what is still there after some seconds."""
        daemon = self.find(name)
        daemon.process.send(signal.SIGCONT)
        daemon.process.send(number)
        if not wait_for_end(daemon.process, seconds):
            daemon.process.send(signal.SIGKILL)
            wait_for_end(daemon.process, seconds)
        wait_for_end(daemon.wrapper, seconds)

    def restart(self, name: str, *, number: int = signal.SIGTERM) -> Daemon:
        """Stop a daemon and start it again as it was."""
        self.stop(name, number=number)
        return self.start(name, self.find(name).command)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Stop a daemon by SIGSTOP for as long as the block lasts."""
        process = self.find(name).process
        process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send(signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill what still runs."""
        found = [self.find(name) for name in self.names()]
        for process in [one for daemon in found for one in (daemon.process, daemon.wrapper)]:
            process.send(signal.SIGKILL)
        for process in [one for daemon in found for one in (daemon.process, daemon.wrapper)]:
            wait_for_end(process, 20)

    def wait_ready(self, name: str, look: Callable[[], object], *, seconds: float = 300) -> None:
        """Wait until a daemon answers.

        Args:
            name: The daemon's.
            look: Returns something true when it is ready.
            seconds: How long it may take; a machine under load takes a multiple of the usual.

        Raises:
            StartError: It ended, or was not ready in time.
        """
        process = self.find(name).process
        deadline = time.monotonic() + seconds
        while not look():
            if not process.is_alive():
                raise self._explain(name, "ended")
            if time.monotonic() > deadline:
                raise self._explain(name, f"was not ready within {seconds:.0f} s")
            time.sleep(0.05)

    def check(self, *names: str) -> None:
        """Check that these daemons run, by default all: what answered on a daemon's port may have been another's.

        Raises:
            StartError: One ended.
        """
        for name in names or self.names():
            if not self.find(name).process.is_alive():
                raise self._explain(name, "ended")

    def log(self, name: str) -> Path:
        """Return a daemon's log."""
        return self.directory / f"{name}.log"

    def _explain(self, name: str, what: str) -> StartError:
        return StartError("\n".join([f"{name} {what}:", *read_last_lines(self.log(name), 20)]))

    def _find_child(self, name: str, wrapper: ProcessIdentity) -> ProcessIdentity:
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
    """Wait until a process is gone with all its threads, and with them its ports and files.

    Its first thread may be a zombie already, which counts as ended elsewhere, while others still hold both.

    Returns:
        Whether it is gone.
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
