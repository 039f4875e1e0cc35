"""One version of a local service: start, status, logs and termination of its processes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator

from kfp_mindspore.errors import ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.backends.state import ServerState, VersionDirectory
from kfp_mindspore.inference.service import ServiceState, ServiceStatus
from kfp_mindspore.local.logs import LogReader, read_last_lines
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.local.supervisor import end_supervisor, start_supervisor
from kfp_mindspore.settings import EVENTS_VARIABLE, LEASE_VARIABLE, STEP_VARIABLE

SUPERVISOR_MODULE = "kfp_mindspore.inference.backends.supervisor"
_LAST_LINES = 20
_POLL_SECONDS = 0.02
_FOLLOW_SECONDS = 0.1


def start_version(version: VersionDirectory, deadline: float, wait_seconds: float) -> None:
    """Start a version's supervisor and wait until its server is ready."""
    (version.path / "state.json").unlink(missing_ok=True)
    supervisor = start_supervisor(
        SUPERVISOR_MODULE, version.path, cwd=version.work, env=_make_environment(), log=version.supervisor_log
    )
    try:
        _wait_for_server(version, supervisor, deadline, wait_seconds)
    except BaseException:
        end_supervisor(supervisor, version.read_spec().grace_seconds)
        raise


def _wait_for_server(
    version: VersionDirectory, supervisor: ProcessIdentity, deadline: float, wait_seconds: float
) -> None:
    name = version.read_spec().name
    while True:
        # Checked before the state, so that the last state of a supervisor is still read.
        alive = supervisor.is_alive()
        state = version.read_state()
        if state is not None and state.state is ServiceState.READY:
            return
        if not alive or (state is not None and state.state in (ServiceState.FAILED, ServiceState.STOPPED)):
            why = state.message if state is not None and state.message else "its supervisor ended"
            raise ProcessFailedError(f"service {name}: {why}", log=_read_last_lines(version))
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"service {name}: not ready within {wait_seconds:g} s",
                log=_read_last_lines(version),
                hint="Increase the timeout if it is still loading according to its last lines.",
            )
        time.sleep(_POLL_SECONDS)


def _read_last_lines(version: VersionDirectory) -> list[str]:
    return read_last_lines(version.server_log, _LAST_LINES) or read_last_lines(version.supervisor_log, _LAST_LINES)


def _make_environment() -> dict[str, str]:
    # The spec names the lease; events of a service do not belong to the step that deployed it.
    dropped = (LEASE_VARIABLE, EVENTS_VARIABLE, STEP_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in dropped}


def end_version(version: VersionDirectory) -> None:
    """Terminate a version's processes, and wait until they are gone."""
    state = version.read_state()
    if state is None:
        return
    end_supervisor(state.supervisor, version.read_spec().grace_seconds)
    state = version.read_state() or state
    if state.state is not ServiceState.STOPPED:
        # The supervisor failed, or was killed before it could record this.
        version.write_state(dataclasses.replace(state, state=ServiceState.STOPPED, server=None, message="stopped"))


def discard(version: VersionDirectory) -> None:
    """Terminate what a version left running and remove its directory."""
    end_version(version)
    shutil.rmtree(version.path, ignore_errors=True)


def get_status(version: VersionDirectory) -> ServiceStatus:
    """Return the status of a version.

    Raises:
        UserError: It was removed meanwhile.
    """
    spec = version.read_spec()
    status = ServiceStatus(
        name=spec.name,
        namespace=spec.namespace,
        state=ServiceState.FAILED,
        url=spec.url,
        grpc_url=spec.grpc_url,
        model=spec.source,
        version=spec.version,
        replicas=1,
        warnings=spec.warnings,
        created=spec.created,
        log=str(version.server_log),
        digest=spec.service.get("digest", ""),
        run=spec.service.get("run", ""),
    )
    state = version.read_state()
    if state is None:
        raise UserError(
            f"{version.path}: its state is lost", hint=f"Remove it: kfp-mindspore service delete {spec.name}"
        )
    kind, message = state.state, state.message
    is_finished = kind in (ServiceState.STOPPED, ServiceState.FAILED)
    if not is_finished and not state.supervisor.is_alive():
        # It may have finished since its state was read.
        state = version.read_state() or state
        kind, message = state.state, state.message
        if kind not in (ServiceState.STOPPED, ServiceState.FAILED):
            return dataclasses.replace(
                status,
                restarts=state.restarts,
                message=f"its supervisor (process {state.supervisor.pid}) was killed",
            )
    if kind is ServiceState.READY and not rest.is_ready(spec.url, spec.name):
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
    """Yield the lines of a version's server; with `follow` until the version is finished."""
    reader = LogReader(version.server_log)
    finished = not follow or _is_finished(version.read_state())
    first = reader.read(final=finished)
    yield from first if lines is None else first[max(0, len(first) - lines) :]
    while not finished:
        time.sleep(_FOLLOW_SECONDS)
        finished = _is_finished(version.read_state())
        yield from reader.read(final=finished)


def _is_finished(state: ServerState | None) -> bool:
    if state is None or state.state in (ServiceState.STOPPED, ServiceState.FAILED):
        return True
    return not state.supervisor.is_alive()
