"""The supervisor: a detached process that owns the child processes for one job or one service version.

It is single-threaded, since on Linux children die with the thread that started them. What it does with its children is
its subclass's policy: `kfp_mindspore.msjob` restarts gangs, `kfp_mindspore.inference` restarts a server.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType

from kfp_mindspore.local.lease import is_lease_held
from kfp_mindspore.local.process import (
    ProcessIdentity,
    adopt_orphans,
    kill_descendants,
    kill_session,
    reap_orphans,
    spawn_child,
    spawn_detached,
    terminate_groups,
)

# Seconds that a supervisor may take beyond its children's grace period before it is killed.
_END_SECONDS = 6.0


class Supervisor(ABC):
    """Calls `step` until nothing is left to do.

    Args:
        lease: Lease file that the children must not outlive; empty without one.
    """

    def __init__(self, lease: str = "") -> None:
        self._lease = lease
        self._is_terminated = False
        self._children: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def step(self) -> float | None:
        """Do what is due; return the seconds until the next step, or None when nothing is left to do."""

    @property
    def is_terminated(self) -> bool:
        """Whether SIGTERM was received."""
        return self._is_terminated

    @property
    def is_orphaned(self) -> bool:
        """Whether the lease was released."""
        return bool(self._lease) and not is_lease_held(self._lease)

    def run(self) -> None:
        """Supervise until `step` returns None; a signal or a child's exit ends a pause early."""
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        # A handler, even an empty one, is what writes to the wakeup descriptor.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        adopt_orphans()
        while (pause := self.step()) is not None:
            if select.select([reader], [], [], pause)[0]:
                os.read(reader, 4096)
                reap_orphans([child.pid for child in self._children])

    def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | str,
        env: Mapping[str, str],
        log: Path,
        own_session: bool = False,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a child; the arguments are `spawn_child`'s.

        Raises:
            OSError: It could not be started.
        """
        self._children.append(spawn_child(argv, cwd=cwd, env=env, log=log, own_session=own_session, stdin=stdin))
        return self._children[-1]

    def end_children(self, grace_seconds: float, *, keep: Collection[int] = ()) -> None:
        """Terminate all children and their descendants.

        Args:
            grace_seconds: Seconds between SIGTERM and SIGKILL; 0 kills at once.
            keep: Child process numbers that are not terminated.
        """
        ended = [child for child in self._children if child.pid not in keep]
        terminate_groups([child.pid for child in ended if child.poll() is None], grace_seconds)
        kill_descendants(keep=keep)
        for child in ended:
            child.wait()
        self._children = [child for child in self._children if child.pid in keep]
        reap_orphans(list(keep))

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._is_terminated = True


def start_supervisor(
    module: str, directory: Path, *, cwd: Path | str, env: Mapping[str, str], log: Path
) -> ProcessIdentity:
    """Start a supervisor as a detached process.

    Args:
        module: Its module, run by `python -m`.
        directory: Its state directory, the module's only argument.
        cwd: Working directory.
        env: The whole environment.
        log: File for its output; it has some only when it fails itself.

    Raises:
        OSError: It could not be started.
    """
    return spawn_detached([sys.executable, "-m", module, str(directory)], cwd=cwd, env=env, log=log)


def end_supervisor(supervisor: ProcessIdentity, grace_seconds: float) -> None:
    """Terminate a supervisor and wait until it and its session are gone.

    Args:
        supervisor: Its identity; a process that reuses its number is spared.
        grace_seconds: Seconds that its children may take.
    """
    if supervisor.send(signal.SIGTERM) and not supervisor.wait(grace_seconds + _END_SECONDS):
        kill_leader(supervisor)
    kill_session(supervisor)


def kill_leader(leader: ProcessIdentity) -> None:
    """Kill a process that leads a session, and what is left in the session."""
    if leader.send(signal.SIGKILL):
        leader.wait(_END_SECONDS)
    if not leader.is_alive():
        kill_session(leader)
