"""Local processes: identities, detached processes, children that die with their parent, supervisors, termination."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from kfp_mindspore.files import read_boot_id
from kfp_mindspore.local.lease import is_lease_held

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
# How often the process table is read at most until no process to be killed is left.
_SWEEPS = 20

# Loaded here because a forked child may not import; None where there is no prctl.
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None
# Detached processes that this process started: polled, so that they do not stay as zombies.
_detached: dict[int, subprocess.Popen[bytes]] = {}
# Seconds that a supervisor may take beyond its children's grace period before it is killed.
_END_SECONDS = 6.0


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, distinct from a later one that reuses the number.

    Args:
        pid: Process number.
        start_time: Boot and start time, as opaque text; compare for equality only.
    """

    pid: int
    start_time: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return a running process's identity, or None."""
        try:
            # On Linux relative to the boot, which a wall clock step does not change; psutil adds the boot time that it
            # read last, so it is read first.
            boot_time = psutil.boot_time() if _LINUX else 0.0
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid, f"{_BOOT}-{process.create_time() - boot_time:.2f}")
        except psutil.NoSuchProcess:
            return None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ProcessIdentity:
        """Rebuild an identity from `to_dict`'s result."""
        return cls(int(value["pid"]), str(value["start_time"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the identity as JSON types."""
        return {"pid": self.pid, "start_time": self.start_time}

    def is_alive(self) -> bool:
        """Return whether this very process still runs; a zombie does not."""
        is_alive = ProcessIdentity.of(self.pid) == self
        # Polled afterwards: a child that ended in between is a zombie, and nobody may ask again.
        if not is_alive and (child := _detached.get(self.pid)) is not None and child.poll() is not None:
            del _detached[self.pid]
        return is_alive

    def wait(self, timeout: float) -> bool:
        """Wait until the process is gone.

        Args:
            timeout: Seconds.

        Returns:
            Whether it is gone.
        """
        return _wait_until(lambda: not self.is_alive(), timeout)

    def send(self, number: int) -> bool:
        """Send a signal, unless the process is gone.

        Returns:
            Whether the signal was sent.
        """
        if not self.is_alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start.

    Attributes:
        argv: Program and arguments.
        cwd: Working directory.
        environment: The whole environment.
    """

    argv: tuple[str, ...]
    cwd: Path
    environment: dict[str, str]


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and the descendants used, ended children included; 0 when it is gone."""
    try:
        process = psutil.Process(pid)
        own = process.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
    except psutil.NoSuchProcess:
        return 0.0
    for child in _list_children(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


def spawn_detached(
    argv: Sequence[str], *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, log: Path
) -> ProcessIdentity:
    """Start a process in its own session, which outlives this one.

    Args:
        argv: Program and arguments.
        cwd: Working directory; default this process's.
        env: The whole environment; default this process's.
        log: File that gets the output and errors, appended.

    Raises:
        OSError: It could not be started.
    """
    for pid in [pid for pid, child in list(_detached.items()) if child.poll() is not None]:
        _detached.pop(pid, None)
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(argv), cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    _detached[child.pid] = child
    return ProcessIdentity.of(child.pid) or ProcessIdentity(child.pid, "ended")


def spawn_child(
    argv: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    log: Path,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in its own process group that does not survive this one (on Linux not even a `kill -9`).

    For supervisors only: on Linux the kernel ties the child to the calling thread, which must be the only one.

    Args:
        argv: Program and arguments.
        cwd: Working directory; default this process's.
        env: The whole environment; default this process's.
        log: File that gets the output and errors, appended.
        own_session: Whether it also leads a session. Linux's autogroup scheduling divides a busy machine's cores among
            sessions first, so that several workers in one session would get one session's share; but `kill_session` on
            this process does not find the orphans of such a child.

    Raises:
        OSError: It could not be started.
    """
    parent = os.getpid()

    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=partial(enter_child, parent, own_session=own_session),
        )


def enter_child(parent: int, *, own_session: bool) -> None:
    """Make a process that was just forked what `spawn_child` documents: group or session, signals, parent's death."""
    if own_session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if _libc is not None:
        die_with_parent(parent)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it dies; end at once when it is dead already.

    For children that were started without `spawn_child`. Only on Linux is a later death noticed.

    Args:
        parent: The expected parent's process number.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)


def adopt_orphans() -> None:
    """Make this process the orphaned descendants' parent, so that `kill_descendants` finds them (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(keep: Sequence[int] = ()) -> None:
    """Collect exit codes from adopted orphans that ended.

    Args:
        keep: Child pids whose exit codes are collected elsewhere.
    """
    for child in psutil.Process().children():
        if child.pid not in keep and _is_zombie(child):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group; nothing happens when it has no members."""
    # macOS: EPERM for a zombie group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def is_group_alive(group: int) -> bool:
    """Return whether a process group has a member that is no zombie."""
    return bool(_list_members(os.getpgid, {group}))


def terminate_group(pid: int, grace_seconds: float) -> bool:
    """Terminate a process group: SIGTERM, and SIGKILL after the grace period.

    Args:
        pid: The group: the leader's process number.
        grace_seconds: Seconds between SIGTERM and SIGKILL; 0 kills at once.

    Returns:
        Whether all members exited within the grace period.
    """
    return terminate_groups([pid], grace_seconds)


def terminate_groups(pids: Sequence[int], grace_seconds: float) -> bool:
    """Terminate several process groups together, as `terminate_group` does, with one grace period for all."""
    wanted = set(pids)

    def is_finished() -> bool:
        return not _list_members(os.getpgid, wanted)

    if grace_seconds > 0:
        for pid in wanted:
            kill_group(pid, signal.SIGTERM)
        if _wait_until(is_finished, grace_seconds):
            return True
    for pid in wanted:
        kill_group(pid)
    # A process in an uninterruptible wait exits later.
    _wait_until(is_finished, 5.0)
    return False


def kill_descendants(pid: int | None = None) -> list[int]:
    """Kill all descendants of a process, in any process group and session.

    Args:
        pid: The ancestor, which is not killed; default this process.

    Returns:
        The killed processes' numbers.
    """

    def list_pids() -> list[int]:
        return [item.pid for item in _list_children(pid) if not _is_zombie(item)]

    return _kill_repeatedly(list_pids)


def kill_session(leader: ProcessIdentity) -> list[int]:
    """Kill the members in a dead process's session.

    Args:
        leader: The session leader's identity. When another process reuses the number, nothing is killed.

    Returns:
        The killed processes' numbers.
    """
    if leader.is_alive():
        raise ValueError(f"process {leader.pid} is alive: end it first")

    def list_members() -> list[int]:
        current = ProcessIdentity.of(leader.pid)
        return [] if current not in (None, leader) else _list_members(os.getsid, {leader.pid})

    return _kill_repeatedly(list_members)


class ForkedProcess:
    """A forked child, with what supervisors use of subprocess.Popen.

    Attributes:
        pid: Process number.
        returncode: As Popen's; None while it runs.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the child runs."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the child has exited and return the exit code."""
        code = self._collect(0)
        assert code is not None
        return code

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


Child = subprocess.Popen[bytes] | ForkedProcess


class Supervisor(ABC):
    """A detached process that owns the child processes for one job or service version.

    It is single-threaded, since on Linux children die with the thread that started them. `step` is the policy of a
    subclass: `kfp_mindspore.msjob` restarts gangs, `kfp_mindspore.inference` restarts a server.

    Args:
        lease: Lease file that the children must not outlive; empty without one.
    """

    def __init__(self, lease: str = "") -> None:
        self._lease = lease
        self._is_terminated = False
        self._children: list[Child] = []

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
    ) -> subprocess.Popen[bytes]:
        """Start a child; the arguments are `spawn_child`'s.

        Raises:
            OSError: It could not be started.
        """
        child = spawn_child(argv, cwd=cwd, env=env, log=log, own_session=own_session)
        self._children.append(child)
        return child

    def add_child(self, child: ForkedProcess) -> None:
        """Own a child that was forked from this process."""
        self._children.append(child)

    def end_children(self, grace_seconds: float) -> None:
        """Terminate all children and their descendants.

        Args:
            grace_seconds: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        """
        terminate_groups([child.pid for child in self._children if child.poll() is None], grace_seconds)
        kill_descendants()
        for child in self._children:
            child.wait()
        self._children.clear()
        reap_orphans()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._is_terminated = True


def start_supervisor(
    module: str, directory: Path, *, cwd: Path | str, env: Mapping[str, str], log: Path
) -> ProcessIdentity:
    """Start a supervisor as a detached process.

    Args:
        module: The module, run by `python -m`.
        directory: The state directory, the module's only argument.
        cwd: Working directory.
        env: The whole environment.
        log: File for the output; it has some only when it fails itself.

    Raises:
        OSError: It could not be started.
    """
    return spawn_detached([sys.executable, "-m", module, str(directory)], cwd=cwd, env=env, log=log)


def end_supervisor(supervisor: ProcessIdentity, grace_seconds: float) -> None:
    """Terminate a supervisor and wait until it and the session are gone.

    Args:
        supervisor: The identity; a process that reuses the number is spared.
        grace_seconds: Seconds that the children may take.
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


def _kill_repeatedly(list_pids: Callable[[], list[int]]) -> list[int]:
    """Kill processes until none is listed: one may fork while the process table is read."""
    killed: list[int] = []
    for _ in range(_SWEEPS):
        pids = list_pids()
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.extend(pid for pid in pids if pid not in killed)
        time.sleep(_POLL_SECONDS)
    return killed


def _list_children(pid: int | None) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def _list_members(get_id: Callable[[int], int], ids: Collection[int]) -> list[int]:
    """Return the processes, without zombies, of process groups (`os.getpgid`) or sessions (`os.getsid`)."""
    members = []
    for pid in psutil.pids():
        # PermissionError: macOS, for a process in another session.
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if get_id(pid) in ids and not _is_zombie(psutil.Process(pid)):
                members.append(pid)
    return members


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_until(is_true: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


_BOOT = read_boot_id()[:8] if _LINUX else ""
