"""Local processes that are owned by somebody: identities, detached supervisors and their children.

A supervisor is a detached, single-threaded Python process that owns the processes of one job or service. Only the
standard library is imported here, so that a supervisor starts in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
# A process may fork while the table is read: look again, this often at most, until none is left.
_SWEEPS = 20

# Loaded here because a forked child may not import; None where there is no prctl.
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None
# Detached processes that this process started: polled, so that they do not stay as zombies.
_detached: dict[int, subprocess.Popen[bytes]] = {}


class _Entry(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    state: str
    start_time: str


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, told apart from a later one that has the same number.

    Args:
        pid: Process number.
        start_time: When it started, as an opaque text that also names the boot; compare for equality only.
    """

    pid: int
    start_time: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of a running process, or None when there is none with this number."""
        entry = _read_entry(pid)
        return None if entry is None or entry.state == "Z" else cls(pid, entry.start_time)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ProcessIdentity:
        """Rebuild an identity from `to_dict`'s result."""
        return cls(int(value["pid"]), str(value["start_time"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the identity as JSON types."""
        return {"pid": self.pid, "start_time": self.start_time}

    def is_alive(self) -> bool:
        """Tell whether this very process still runs; a zombie does not."""
        if (child := _detached.get(self.pid)) is not None and child.poll() is not None:
            del _detached[self.pid]
        return ProcessIdentity.of(self.pid) == self

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


def spawn_detached(
    argv: Sequence[str], *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, log: Path
) -> ProcessIdentity:
    """Start a process in a session of its own, which outlives this one.

    Args:
        argv: Program and arguments.
        cwd: Working directory; default this process's.
        env: The whole environment; default this process's.
        log: File that gets its output and errors, appended.

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
    entry = _read_entry(child.pid)
    return ProcessIdentity(child.pid, entry.start_time if entry else "ended")


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
        log: File that gets its output and errors, appended.
        own_session: Whether it also leads a session. Linux shares the cores of a busy machine out among sessions
            first, so that several workers in one session would get the share of one; but `kill_session` of this
            process no longer finds what such a child leaves behind.

    Raises:
        OSError: It could not be started.
    """
    parent = os.getpid()

    def prepare() -> None:
        if own_session:
            os.setsid()
        else:
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(137)

    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=prepare,
        )


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it dies; end at once when it is dead already.

    For children that were started without `spawn_child`. Only on Linux is a later death noticed.

    Args:
        parent: Number of the process that started this one, as it said itself.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, so that `kill_descendants` finds them (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(keep: Sequence[int] = ()) -> None:
    """Collect the exit codes of adopted orphans that ended.

    Args:
        keep: Pids of children whose exit code somebody else collects.
    """
    own = os.getpid()
    for entry in _list_entries():
        if entry.parent == own and entry.state == "Z" and entry.pid not in keep:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(entry.pid, os.WNOHANG)


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group; nothing happens when it has no members."""
    # macOS says EPERM for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def is_group_alive(group: int) -> bool:
    """Tell whether a process group has a member that is no zombie."""
    return any(entry.group == group and entry.state != "Z" for entry in _list_entries())


def terminate_group(pid: int, grace_seconds: float) -> bool:
    """End a process group: SIGTERM, and SIGKILL to what is left after the grace period.

    Args:
        pid: The group, which is the number of the process that leads or led it.
        grace_seconds: How long its members may take, in seconds; 0 kills at once.

    Returns:
        Whether all ended within the grace period.
    """
    return terminate_groups([pid], grace_seconds)


def terminate_groups(pids: Sequence[int], grace_seconds: float) -> bool:
    """End several process groups together, as `terminate_group` does, with one grace period for all."""
    wanted = set(pids)

    def is_over() -> bool:
        return not any(entry.group in wanted and entry.state != "Z" for entry in _list_entries())

    if grace_seconds > 0:
        for pid in wanted:
            kill_group(pid, signal.SIGTERM)
        if _wait_until(is_over, grace_seconds):
            return True
    for pid in wanted:
        kill_group(pid)
    # SIGKILL cannot be refused; a process in an uninterruptible wait may take a moment.
    _wait_until(is_over, 5.0)
    return False


def kill_descendants(pid: int | None = None) -> list[int]:
    """Kill every process below one, whatever group or session it moved to.

    Args:
        pid: The ancestor, which is spared; default this process.

    Returns:
        The numbers of the processes that were killed.
    """
    ancestor = os.getpid() if pid is None else pid
    killed: list[int] = []
    for _ in range(_SWEEPS):
        entries = [entry for entry in _list_entries() if entry.state != "Z"]
        family = {ancestor}
        while grown := {entry.pid for entry in entries if entry.parent in family} - family:
            family |= grown
        family.discard(ancestor)
        if not family:
            break
        for member in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        killed.extend(family.difference(killed))
        time.sleep(_POLL_SECONDS)
    return killed


def kill_session(leader: ProcessIdentity) -> list[int]:
    """Kill what a dead supervisor left behind: the members of the session that it led.

    Args:
        leader: Identity of the supervisor. When its number belongs to another process by now, nothing is done.

    Returns:
        The numbers of the processes that were killed.
    """
    if leader.is_alive():
        raise ValueError(f"process {leader.pid} is alive: end it first")
    killed: list[int] = []
    for _ in range(_SWEEPS):
        entries = _list_entries()
        if any(entry.pid == leader.pid and entry.start_time != leader.start_time for entry in entries):
            break
        members = [entry.pid for entry in entries if entry.session == leader.pid and entry.state != "Z"]
        if not members:
            break
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.extend(pid for pid in members if pid not in killed)
        time.sleep(_POLL_SECONDS)
    return killed


def _wait_until(is_over: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not is_over():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _read_boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "boot"


_BOOT = _read_boot() if _LINUX else ""


def _read_entry(pid: int) -> _Entry | None:
    if not _LINUX:
        return next(iter(_run_ps("-p", str(pid))), None)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return _Entry(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], f"{_BOOT}-{fields[19]}")


def _list_entries() -> list[_Entry]:
    if not _LINUX:
        return _run_ps("-ax")
    entries = (_read_entry(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - twice as fast
    return [entry for entry in entries if entry is not None]


def _run_ps(*selection: str) -> list[_Entry]:
    """Read the process table where there is no /proc, such as on macOS."""
    command = ["ps", *selection, "-o", "pid=,ppid=,pgid=,sess=,state=,lstart="]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    entries = []
    for line in result.stdout.splitlines():
        pid, parent, group, session, state, start = line.split(None, 5)
        # macOS prints sessions as addresses, often 0: the group stands in for it.
        entries.append(_Entry(int(pid), int(parent), int(group), _parse_int(session), state[0], start))
    return entries


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
