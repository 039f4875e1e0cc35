"""Supervisor for one service version: `python -m kfp_mindspore.inference.backends.supervisor DIRECTORY`.

It terminates the server and itself on SIGTERM, when the lease is released, when the deployment that started it dies
before it is done, and when another version becomes the service.
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

from kfp_mindspore.inference import rest
from kfp_mindspore.inference.backends.state import VersionDirectory, VersionState
from kfp_mindspore.inference.service import ServiceState
from kfp_mindspore.local.lease import is_lease_held
from kfp_mindspore.local.process import ProcessIdentity, Supervisor

_STARTING_POLL_SECONDS = 0.05
_POLL_SECONDS = 0.1
_SUPERSEDED_SECONDS = 1.0
_PROBE_SECONDS = 0.5
_FIRST_BACKOFF_SECONDS = 0.1
_MAXIMUM_BACKOFF_SECONDS = 10.0
# A log that grows beyond this is rotated to `server.log.1`.
_LOG_BYTES = 32 << 20


class ServerSupervisor(Supervisor):
    """Runs a version's server, probes readiness and restarts it when it crashes.

    Args:
        directory: The version, whose spec has been written.
    """

    def __init__(self, directory: VersionDirectory) -> None:
        self._directory = directory
        self._spec = directory.read_spec()
        super().__init__(self._spec.lease or "")
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        self._state = VersionState(ServiceState.STARTING, own)
        self._server: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._ready_since: float | None = None
        self._crashes = 0
        self._is_current = False
        self._check_current_at = 0.0
        self._save()

    def step(self) -> float | None:
        """Do what is due; see `Supervisor.step`."""
        if reason := self._get_stop_reason():
            self.end_children(self._spec.grace_seconds)
            self._save(state=ServiceState.STOPPED, server=None, message=reason)
            return None
        if self._server is None:
            if time.monotonic() < self._start_at:
                return _STARTING_POLL_SECONDS
            if not self._start_server():
                return self._handle_crash(f"its server could not be started: {self._spec.argv[0]}")
        assert self._server is not None
        if (code := self._server.poll()) is not None:
            self._state = dataclasses.replace(self._state, exit_code=code)
            ended = f"ended with exit code {code}"
            if code < 0:
                ended = f"was ended by signal {-code} ({signal.Signals(-code).name})"
            return self._handle_crash(f"its server {ended}")
        if self._ready_since is None and rest.is_ready(self._spec.url, self._spec.name, timeout=_PROBE_SECONDS):
            self._ready_since = time.monotonic()
            self._save(state=ServiceState.READY)
        self._rotate_log()
        return _STARTING_POLL_SECONDS if self._ready_since is None else _POLL_SECONDS

    def _get_stop_reason(self) -> str:
        """Return why the service has to end; empty when it goes on."""
        if self.is_terminated:
            return "stopped"
        if self.is_orphaned:
            return "stopped: the run that started it is over"
        if time.monotonic() < self._check_current_at:
            return ""
        self._check_current_at = time.monotonic() + (_SUPERSEDED_SECONDS if self._is_current else _POLL_SECONDS)
        # Checked before the current version: a deployment that succeeds sets that first, then releases its lease.
        is_deploying = not self._is_current and is_lease_held(self._directory.deploying)
        current = self._directory.service.current
        if current is not None and current.number == self._directory.number:
            self._is_current = True
            return ""
        if is_deploying:
            return ""
        return "stopped: replaced by another version" if self._is_current else "stopped: its deployment was ended"

    def _start_server(self) -> bool:
        try:
            # Unbuffered: users follow the log.
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self._spec.service.get("env", {})}
            log = self._directory.server_log
            self._server = self.spawn(self._spec.argv, cwd=self._directory.work, env=environment, log=log)
        except OSError as error:
            with self._directory.server_log.open("a") as file:
                file.write(f"{self._spec.argv[0]}: {error.strerror or error}\n")
            return False
        self._save(server=ProcessIdentity.of(self._server.pid))
        return True

    def _handle_crash(self, message: str) -> float | None:
        self.end_children(0.0)
        ready_seconds = None if self._ready_since is None else time.monotonic() - self._ready_since
        self._server = self._ready_since = None
        # A server that crashes before its first answer fails the deployment, which waits for it.
        was_ready = self._state.restarts > 0 or ready_seconds is not None
        self._crashes = 1 if (ready_seconds or 0.0) >= self._spec.stable_seconds else self._crashes + 1
        if not was_ready or self._crashes > self._spec.max_restarts:
            if was_ready:
                in_a_row = f", {self._crashes} times in a row" if self._crashes > 1 else ""
                message = f"{message}{in_a_row}: not restarted again"
            self._save(state=ServiceState.FAILED, server=None, message=message)
            return None
        backoff = min(_FIRST_BACKOFF_SECONDS * 2 ** (self._crashes - 1), _MAXIMUM_BACKOFF_SECONDS)
        self._start_at = time.monotonic() + backoff
        restarts = self._state.restarts + 1
        self._save(state=ServiceState.RESTARTING, server=None, restarts=restarts, message=f"restarted: {message}")
        return _STARTING_POLL_SECONDS

    def _rotate_log(self) -> None:
        log = self._directory.server_log
        # A deleted service's directory is missing.
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _LOG_BYTES:
                # The server has the file open to append, and continues at its start.
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                os.truncate(log, 0)

    def _save(self, **changes: object) -> None:
        self._state = dataclasses.replace(self._state, **changes)  # type: ignore[arg-type]
        # Writing would create a deleted service's directory again.
        if self._directory.path.is_dir():
            self._directory.write_state(self._state)


if __name__ == "__main__":
    ServerSupervisor(VersionDirectory(Path(sys.argv[1]))).run()
