"""The processes of one version of a service: started, described, followed and ended."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kfp_mindspore.errors import ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.backends.state import State, VersionDirectory
from kfp_mindspore.inference.service import ServiceState, ServiceStatus
from kfp_mindspore.local.logs import LogReader, read_last_lines
from kfp_mindspore.local.process import ProcessIdentity, kill_session, spawn_detached
from kfp_mindspore.settings import EVENTS_VARIABLE, LEASE_VARIABLE, STEP_VARIABLE

SUPERVISOR_MODULE = "kfp_mindspore.inference.backends.supervisor"
_LAST_LINES = 20
_POLL_SECONDS = 0.02
_FOLLOW_SECONDS = 0.1
# How long a supervisor may take beyond its server's grace period.
_SUPERVISOR_SECONDS = 6.0


def start_version(version: VersionDirectory, deadline: float, wait_seconds: float) -> None:
    """Start a version's supervisor and wait until its server is ready."""
    (version.path / "state.json").unlink(missing_ok=True)
    supervisor = spawn_detached(
        [sys.executable, "-m", SUPERVISOR_MODULE, str(version.path)],
        cwd=version.work,
        env=_make_environment(),
        log=version.supervisor_log,
    )
    try:
        _wait_for_server(version, supervisor, deadline, wait_seconds)
    except BaseException:
        _end_supervisor(supervisor, version.read_spec().grace_seconds)
        raise


def _wait_for_server(
    version: VersionDirectory, supervisor: ProcessIdentity, deadline: float, wait_seconds: float
) -> None:
    name = version.read_spec().name
    while True:
        # Asked before the state: what a supervisor says last is still read.
        alive = supervisor.is_alive()
        state = version.read_state()
        if state is not None and state.state is ServiceState.READY:
            return
        if not alive or (state is not None and state.state in (ServiceState.FAILED, ServiceState.STOPPED)):
            why = state.message if state is not None and state.message else "its supervisor ended"
            raise ProcessFailedError(f"service {name}: {why}", log=_read_ends(version))
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"service {name}: not ready within {wait_seconds:g} s",
                log=_read_ends(version),
                hint="Give it more time if its last lines say that it is still loading.",
            )
        time.sleep(_POLL_SECONDS)


def _read_ends(version: VersionDirectory) -> list[str]:
    return read_last_lines(version.server_log, _LAST_LINES) or read_last_lines(version.supervisor_log, _LAST_LINES)


def _make_environment() -> dict[str, str]:
    # The plan names the lease; and what a service does is no part of the step that deployed it.
    dropped = (LEASE_VARIABLE, EVENTS_VARIABLE, STEP_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in dropped}


def end_version(version: VersionDirectory) -> None:
    """End a version's processes, and wait until they are gone."""
    state = version.read_state()
    if state is None:
        return
    _end_supervisor(state.supervisor, version.read_spec().grace_seconds)
    state = version.read_state() or state
    if state.state is not ServiceState.STOPPED:
        # Its supervisor had failed or was killed before it could say so.
        version.write_state(dataclasses.replace(state, state=ServiceState.STOPPED, server=None, message="stopped"))


def _end_supervisor(supervisor: ProcessIdentity, grace_seconds: float) -> None:
    if supervisor.send(signal.SIGTERM) and not supervisor.wait(grace_seconds + _SUPERVISOR_SECONDS):
        supervisor.send(signal.SIGKILL)
        supervisor.wait(_SUPERVISOR_SECONDS)
    kill_session(supervisor)


def discard(version: VersionDirectory) -> None:
    """End what a version left running and remove its directory."""
    end_version(version)
    shutil.rmtree(version.path, ignore_errors=True)


def describe(version: VersionDirectory) -> ServiceStatus:
    """Return how a version is; raises UserError when it was removed meanwhile."""
    plan = version.read_spec()
    status = ServiceStatus(
        name=plan.name,
        namespace=plan.namespace,
        state=ServiceState.FAILED,
        url=plan.url,
        grpc_url=plan.grpc_url,
        model=plan.source,
        version=plan.version,
        replicas=1,
        warnings=plan.warnings,
        created=plan.created,
        log=str(version.server_log),
    )
    state = version.read_state()
    if state is None:
        raise UserError(
            f"{version.path}: its state is lost", hint=f"Remove it: kfp-mindspore service delete {plan.name}"
        )
    kind, message = state.state, state.message
    is_over = kind in (ServiceState.STOPPED, ServiceState.FAILED)
    if not is_over and not state.supervisor.is_alive():
        # It may have ended in good order since its state was read.
        state = version.read_state() or state
        kind, message = state.state, state.message
        if kind not in (ServiceState.STOPPED, ServiceState.FAILED):
            return dataclasses.replace(
                status,
                restarts=state.restarts,
                message=f"its supervisor (process {state.supervisor.pid}) was killed",
            )
    if kind is ServiceState.READY and not rest.is_ready(plan.url, plan.name):
        kind, message = ServiceState.NOT_READY, "its server does not answer"
    server = state.server
    return dataclasses.replace(
        status,
        state=kind,
        restarts=state.restarts,
        pid=server.pid if server is not None and server.is_alive() else None,
        message=message,
    )


def read_logs(version: VersionDirectory, follow: bool, lines: int | None) -> Iterator[str]:
    """Yield what a version's server printed, and go on until the version is over when `follow` is set."""
    reader = LogReader(version.server_log)
    over = not follow or _is_over(version.read_state())
    first = reader.read(final=over)
    yield from first if lines is None else first[max(0, len(first) - lines) :]
    size = 0
    while not over:
        time.sleep(_FOLLOW_SECONDS)
        over = _is_over(version.read_state())
        size, before = _measure(version.server_log), size
        if size < before:
            # Its supervisor has rotated it.
            reader = LogReader(version.server_log)
        yield from reader.read(final=over)


def _measure(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_over(state: State | None) -> bool:
    if state is None or state.state in (ServiceState.STOPPED, ServiceState.FAILED):
        return True
    return not state.supervisor.is_alive()
