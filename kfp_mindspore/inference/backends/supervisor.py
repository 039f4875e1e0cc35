"""The process that owns one version's server: `python -m kfp_mindspore.inference.backends.supervisor DIRECTORY`.

Detached and single-threaded (on Linux its child is tied to the thread that started it). It ends its server and itself
when it gets SIGTERM, when the lease it was started under is no longer held, when the deployment that started it died
before it was done, and when another version has become the service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from kfp_mindspore.inference import rest
from kfp_mindspore.inference.backends.state import State, VersionDirectory
from kfp_mindspore.inference.service import ServiceState
from kfp_mindspore.local.lease import is_lease_held
from kfp_mindspore.local.process import (
    ProcessIdentity,
    adopt_orphans,
    kill_descendants,
    reap_orphans,
    spawn_child,
    terminate_group,
)

_STARTING_POLL_SECONDS = 0.05
_POLL_SECONDS = 0.1
_SUPERSEDED_SECONDS = 1.0
_PROBE_SECONDS = 0.5
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# A log that grows beyond this is moved to `server.log.1`, whose place it takes.
_LOG_BYTES = 32 << 20


class Supervisor:
    """Runs a version's server, restarts it when it crashes, and says how it is.

    Args:
        directory: The version; its plan has been written.
    """

    def __init__(self, directory: VersionDirectory) -> None:
        self._directory = directory
        self._plan = directory.read_spec()
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        self._state = State(ServiceState.STARTING, own)
        self._server: subprocess.Popen[bytes] | None = None
        self._is_current = False
        self._next_look = 0.0
        self._signal = 0
        self._reason = ""

    def run(self) -> None:
        """Supervise until the service is over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        adopt_orphans()
        self._save()
        crashes = 0
        while True:
            ready_seconds = self._run_server()
            reason = self._find_end()
            if reason:
                self._end_server()
                self._save(state=ServiceState.STOPPED, server=None, message=reason)
                return
            how = self._describe_exit()
            kill_descendants()
            reap_orphans()
            # Before its first answer a server is a mistake of the deployment, which waits for it.
            was_ready = self._state.restarts > 0 or ready_seconds is not None
            crashes = 1 if (ready_seconds or 0.0) >= self._plan.stable_seconds else crashes + 1
            if not was_ready or crashes > self._plan.max_restarts:
                if was_ready:
                    how += f"{f', {crashes} times in a row' if crashes > 1 else ''}: not restarted again"
                self._save(state=ServiceState.FAILED, server=None, message=how)
                return
            pause = min(_FIRST_PAUSE_SECONDS * 2 ** (crashes - 1), _LONGEST_PAUSE_SECONDS)
            self._save(
                state=ServiceState.RESTARTING,
                server=None,
                restarts=self._state.restarts + 1,
                message=f"restarted: {how}",
            )
            self._pause(pause)

    def _run_server(self) -> float | None:
        """Start the server and watch it until it or the service is over; return how long it was ready, or None."""
        plan = self._plan
        if self._find_end():
            return None
        try:
            self._server = spawn_child(
                plan.argv, cwd=self._directory.work, env=_make_environment(), log=self._directory.server_log
            )
        except OSError as error:
            with self._directory.server_log.open("a") as log:
                log.write(f"{plan.argv[0]}: {error.strerror or error}\n")
            self._server = None
            return None
        self._save(server=ProcessIdentity.of(self._server.pid))
        ready_since: float | None = None
        while self._server.poll() is None and not self._find_end():
            if ready_since is None and rest.is_ready(plan.url, plan.name, timeout=_PROBE_SECONDS):
                ready_since = time.monotonic()
                message = self._state.message if self._state.restarts else ""
                self._save(state=ServiceState.READY, message=message)
            self._rotate_log()
            time.sleep(_STARTING_POLL_SECONDS if ready_since is None else _POLL_SECONDS)
        return None if ready_since is None else time.monotonic() - ready_since

    def _find_end(self) -> str:
        """Return why the service has to end, or an empty text; a reason stays one."""
        self._reason = self._reason or self._look_for_end()
        return self._reason

    def _look_for_end(self) -> str:
        if self._signal:
            return "stopped"
        if self._plan.lease and not is_lease_held(self._plan.lease):
            return "stopped: the run that started it is over"
        if time.monotonic() < self._next_look:
            return ""
        self._next_look = time.monotonic() + (_SUPERSEDED_SECONDS if self._is_current else _POLL_SECONDS)
        # Asked before the current version: a deployment that ends well first makes it the current one.
        is_deploying = not self._is_current and is_lease_held(self._directory.deploying)
        current = self._directory.service.current
        if current is not None and current.number == self._directory.number:
            self._is_current = True
            return ""
        if is_deploying:
            return ""
        return "stopped: replaced by another version" if self._is_current else "stopped: its deployment was ended"

    def _describe_exit(self) -> str:
        if self._server is None:
            return f"its server could not be started: {self._plan.argv[0]}"
        code = self._server.wait()
        self._state = dataclasses.replace(self._state, exit_code=code)
        if code >= 0:
            return f"its server ended with exit code {code}"
        return f"its server was ended by signal {-code} ({signal.Signals(-code).name})"

    def _end_server(self) -> None:
        if self._server is not None and self._server.poll() is None:
            terminate_group(self._server.pid, self._plan.grace_seconds)
            self._server.wait()
        kill_descendants()

    def _rotate_log(self) -> None:
        log = self._directory.server_log
        # Without its directory the service is about to end.
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _LOG_BYTES:
                # The server has the file open to append: it writes on from the start.
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                os.truncate(log, 0)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._find_end():
            time.sleep(_STARTING_POLL_SECONDS)

    def _save(self, **changes: object) -> None:
        self._state = dataclasses.replace(self._state, **changes)  # type: ignore[arg-type]
        # A service that was deleted has no directory: there is nobody to tell.
        if self._directory.path.is_dir():
            self._directory.write_state(self._state)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signal = number


def _make_environment() -> dict[str, str]:
    # What the server prints is followed by people.
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def main() -> None:
    """Supervise the version in the directory that the command line names."""
    Supervisor(VersionDirectory(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
