"""One local service version: starts and terminates processes, reads status and logs."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator

from kfp_mindspore.errors import ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.backends.state import VersionDirectory, VersionState
from kfp_mindspore.inference.service import ServiceState, ServiceStatus, format_command, list_changed_options
from kfp_mindspore.local.logs import LogReader, read_last_lines
from kfp_mindspore.local.process import ProcessIdentity, end_supervisor, read_cpu_seconds, start_supervisor
from kfp_mindspore.settings import CALLER_TMPDIR_VARIABLE, EVENTS_VARIABLE, LEASE_VARIABLE, LOCAL, STEP_VARIABLE

SUPERVISOR_MODULE = "kfp_mindspore.inference.backends.supervisor"
_LAST_LINES = 20
_POLL_SECONDS = 0.02
_FOLLOW_SECONDS = 0.1
# A server that uses this share of one core in each period gets more time than the timeout, up to the factor.
_PROGRESS_SECONDS = 10.0
_PROGRESS_SHARE = 0.05
_MAXIMUM_FACTOR = 5


def start_version(version: VersionDirectory, deadline: float, wait_seconds: float) -> None:
    """Start a version's supervisor and wait until the server is ready."""
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
    limit = deadline + (_MAXIMUM_FACTOR - 1) * wait_seconds
    progress = _Progress(min(_PROGRESS_SECONDS, wait_seconds / 2))
    while True:
        # Checked before the state, so that a supervisor's last state is still read.
        alive = supervisor.is_alive()
        state = version.read_state()
        if state is not None and state.state is ServiceState.READY:
            return
        if not alive or (state is not None and state.state in (ServiceState.FAILED, ServiceState.STOPPED)):
            why = state.message if state is not None and state.message else "its supervisor ended"
            error = ProcessFailedError(f"service {name}: {why}", log=_read_last_lines(version))
            if state is not None and state.exit_code == UserError.exit_code:
                error.exit_code = UserError.exit_code
            raise error
        server = state.server if state is not None else None
        progress.update((server or supervisor).pid)
        now = time.monotonic()
        if now >= limit or (now >= deadline and not progress.is_made):
            waited = f" and {now - deadline:.0f} s more" if now - deadline >= 1 else ""
            raise WaitTimeoutError(
                f"service {name}: not ready within {wait_seconds:g} s{waited}; "
                f"its server used {progress.cpu_seconds:.1f} s of CPU time",
                log=_read_last_lines(version),
                hint="Increase the timeout if it is still loading according to its last lines.",
            )
        time.sleep(_POLL_SECONDS)


class _Progress:
    """A starting server's progress: whether it uses the CPU, which a busy machine rations.

    Args:
        period: Seconds between two measurements.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._measured_at = time.monotonic()
        self._pid = 0
        self.cpu_seconds = 0.0
        self.is_made = True

    def update(self, pid: int) -> None:
        """Measure a process's CPU time if the period is over."""
        elapsed = time.monotonic() - self._measured_at
        if elapsed < self._period:
            return
        used = read_cpu_seconds(pid)
        # That the supervisor has started the server is progress too.
        is_new, self._pid = pid != self._pid, pid
        self.is_made = is_new or used - self.cpu_seconds >= _PROGRESS_SHARE * elapsed
        self.cpu_seconds = used
        self._measured_at += elapsed


def _read_last_lines(version: VersionDirectory) -> list[str]:
    return read_last_lines(version.server_log, _LAST_LINES) or read_last_lines(version.supervisor_log, _LAST_LINES)


def _make_environment() -> dict[str, str]:
    # The spec names the lease; a service's events do not belong to the step that deployed it.
    dropped = (LEASE_VARIABLE, EVENTS_VARIABLE, STEP_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    if (temporary := environment.pop(CALLER_TMPDIR_VARIABLE, None)) is not None:
        # The run's lease is removed at its end.
        environment["TMPDIR"] = temporary
    return environment


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
    """Terminate what a version left running and remove the directory."""
    end_version(version)
    shutil.rmtree(version.path, ignore_errors=True)


def get_status(version: VersionDirectory) -> ServiceStatus:
    """Return a version's status.

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
        options=list_changed_options(spec.service),
    )
    state = version.read_state()
    if state is None:
        raise UserError(
            f"{version.path}: its state is lost",
            hint=f"Remove it: {format_command('delete', spec.name, spec.namespace, LOCAL)}",
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
    """Yield a version's server log lines; with `follow` until the version is finished."""
    reader = LogReader(version.server_log)
    finished = not follow or _is_finished(version.read_state())
    first = reader.read(final=finished)
    yield from first if lines is None else first[max(0, len(first) - lines) :]
    while not finished:
        time.sleep(_FOLLOW_SECONDS)
        finished = _is_finished(version.read_state())
        yield from reader.read(final=finished)


def _is_finished(state: VersionState | None) -> bool:
    if state is None or state.state in (ServiceState.STOPPED, ServiceState.FAILED):
        return True
    return not state.supervisor.is_alive()
