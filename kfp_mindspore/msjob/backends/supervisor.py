"""Supervisor for one local job: `python -m kfp_mindspore.msjob.backends.supervisor DIRECTORY`.

`restart.decide_job_phase` makes its decisions; client requests are files in the job's directory.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from kfp_mindspore.errors import UserError
from kfp_mindspore.local.fork import ForkedChild
from kfp_mindspore.local.logs import read_last_lines
from kfp_mindspore.local.process import ProcessIdentity, Supervisor
from kfp_mindspore.msjob.api.manifest import now
from kfp_mindspore.msjob.api.names import RESTARTING, RUNNING, SUCCEEDED, SUSPENDED, WORKER
from kfp_mindspore.msjob.api.status import Failure
from kfp_mindspore.msjob.backends.capacity import Capacity
from kfp_mindspore.msjob.backends.forks import WarmInterpreter
from kfp_mindspore.msjob.backends.gang import ProcessGang
from kfp_mindspore.msjob.backends.heartbeats import Heartbeats
from kfp_mindspore.msjob.backends.local import JobDirectory
from kfp_mindspore.msjob.decisions.elastic import decide_workers, get_requested_workers, get_restart_limit
from kfp_mindspore.msjob.decisions.restart import (
    START_ERROR,
    Decision,
    compute_restart_delay,
    decide_job_phase,
    describe_termination,
)
from kfp_mindspore.msjob.progress import parse_progress

_POLL_SECONDS = 0.15
# After the job has succeeded, members that are about to exit may do so before they are terminated.
_SETTLE_SECONDS = 3.0
# The foreground run that owned the job is dead: no process waits for a long grace period.
_ORPHANED_GRACE_SECONDS = 2.0
# Clients that wait for a job with TTL 0 still observe its end.
_LINGER_SECONDS = 1.0
_FAILURE_LINES = 20
# Restarts are delayed after attempts that ended sooner without a completed step.
_QUICK_SECONDS = 60.0


class JobSupervisor(Supervisor):
    """Runs one job's gang: restarts, deadline, suspension, clean-up and TTL.

    Args:
        directory: The job's directory.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._request = directory.read_request()
        super().__init__(self._request.lease)
        self._state = directory.read_state()
        self._job = directory.read_job()
        self._version = self._read_version()
        self._gang: ProcessGang | None = None
        self._heartbeats = Heartbeats(directory.heartbeats)
        self._warm = WarmInterpreter()
        self._capacity = Capacity()
        self._workers = get_requested_workers(self._job)
        self._started = 0.0
        self._quick_failures = 0
        self._start_at = 0.0
        self._is_unsaved = False
        self._is_done = False

    def step(self) -> float | None:
        """Do what is due; see `Supervisor.step`."""
        self._reconcile()
        # Writing would create a removed directory again.
        if self._is_unsaved and self._directory.exists():
            self._save()
        if self._is_done:
            return None
        if self._gang is None and not self._state.status.is_finished:
            return max(0.0, min(_POLL_SECONDS, self._start_at - time.monotonic()))
        return _POLL_SECONDS

    def _reconcile(self) -> None:
        if self._is_interrupted():
            self._end_interrupted()
            return
        self._reload()
        status = self._state.status
        if self._gang is not None and self._gang.poll():
            self._record_pods()
        self._read_progress()
        if status.is_finished:
            self._clean_up()
        elif self._job.effective_run_policy.suspend:
            self._suspend()
        elif self._is_past_deadline():
            seconds = self._job.effective_run_policy.active_deadline_seconds
            self._finish_failed("DeadlineExceeded", f"ran longer than {seconds} s", grace=None)
        elif self._gang is None:
            if time.monotonic() >= self._start_at:
                self._start()
        else:
            self._decide(self._gang)

    def _is_interrupted(self) -> bool:
        return (
            self.is_terminated
            or not self._directory.exists()
            or self._directory.read_delete() is not None
            or self.is_orphaned
        )

    def _end_interrupted(self) -> None:
        self._is_done = True
        if not self._directory.exists():
            self._end_gang(0.0, "Deleted")
            return
        request = self._directory.read_delete()
        if request is not None:
            self._end_gang(request[0], "Deleted")
            self._directory.remove()
            return
        if self._state.status.is_finished:
            self._end_gang(_ORPHANED_GRACE_SECONDS, "Killed")
        elif self.is_orphaned:
            self._finish_failed("OwnerGone", "the run that started this job is gone", grace=_ORPHANED_GRACE_SECONDS)
        else:
            self._finish_failed("SupervisorTerminated", "the job's supervisor was terminated", grace=None)

    def _reload(self) -> None:
        version = self._read_version()
        if version == self._version:
            return
        try:
            self._job = self._directory.read_job()
        except UserError:
            # Deleted in between; the next step handles it.
            return
        self._version = version
        self._state.status.observed_generation = self._job.metadata["generation"]
        self._is_unsaved = True

    def _read_version(self) -> tuple[int, int]:
        try:
            stat = self._directory.job_file.stat()
        except FileNotFoundError:
            return (0, 0)
        return (stat.st_ino, stat.st_mtime_ns)

    def _read_progress(self) -> None:
        try:
            text = self._directory.progress_file.read_bytes()
        except FileNotFoundError:
            return
        progress = parse_progress(text)
        if progress is not None and progress != self._state.status.progress:
            self._state.status.progress = progress
            self._is_unsaved = True

    def _start(self) -> None:
        state = self._state
        if state.status.has(SUSPENDED):
            state.status.set_condition(SUSPENDED, "JobResumed", "the job was resumed", status=False)
        if state.status.start_time is None:
            state.status.start_time = now()
        self._started = time.monotonic()
        available = self._capacity.get_available(self._job, self._started)
        self._workers = decide_workers(
            self._job, current=self._workers, available=available, missing_seconds=float("inf")
        )
        self._capacity.record_start(self._started)
        self._gang = ProcessGang(self._job, self._workers, state.restarts, self, self._heartbeats, self._warm)
        self._gang.start(
            self._request.environment,
            Path(self._request.cwd),
            progress=self._directory.progress_file,
            get_log=self._directory.log_file,
        )
        pods = self._gang.pods
        if self._gang.is_running():
            names = ", ".join(f"{pod.name} (pid {pod.pid})" for pod in pods if pod.pid)
            requested = get_requested_workers(self._job)
            fewer = f"{self._workers} of {requested} workers: " if self._workers < requested else ""
            state.status.set_condition(RUNNING, "JobRunning", f"{fewer}started {names}")
            state.add_event(self._job.name, "Started", f"{fewer}started {names}")
        self._record_pods()

    def _decide(self, gang: ProcessGang) -> None:
        now = time.monotonic()
        gang.kill_hung(now)
        decision = self._make_decision(gang)
        if decision.action == "continue":
            available = self._capacity.get_available(self._job, now)
            workers = decide_workers(self._job, current=gang.workers, available=available)
            if workers != gang.workers:
                self._resize(gang, workers)
        elif decision.action == "succeed":
            self._finish_succeeded(decision.reason, decision.message)
        elif gang.is_port_taken:
            self._restart(
                gang, "PortTaken", f"{decision.message}: another process has its port; a new one is used", 0.0
            )
        elif decision.reason == START_ERROR and self._can_shrink(gang, now):
            self._restart(gang, "JobRestarting", f"{decision.message}; the job goes on without it", 0.0)
        elif decision.action == "fail":
            self._record_failure(decision)
            # Peers would block in a collective with the lost member.
            self._finish_failed(decision.reason, decision.message, grace=0.0)
        else:
            self._record_failure(decision)
            self._state.restarts += decision.counted
            if decision.counted:
                self._capacity.record_failure(self._job, now)
            is_quick = not gang.has_trained and now - self._started < _QUICK_SECONDS
            self._quick_failures = self._quick_failures + 1 if is_quick else 1
            delay = compute_restart_delay(self._quick_failures)
            self._restart(gang, decision.reason, decision.message, 0.0, delay=delay)

    def _make_decision(self, gang: ProcessGang) -> Decision:
        return decide_job_phase(
            gang.terminations,
            success_policy=self._job.success_policy or "",
            restarts=self._state.restarts,
            backoff_limit=get_restart_limit(self._job),
        )

    def _restart(
        self,
        gang: ProcessGang,
        reason: str,
        message: str,
        grace: float | None,
        *,
        peers: str = "PeerFailed",
        delay: float = 0.0,
    ) -> None:
        if gang.is_hung:
            gang.dump_stacks()
        self._end_gang(grace, peers)
        self._gang = None
        self._state.attempt += 1
        self._start_at = time.monotonic() + delay
        self._state.status.set_condition(RESTARTING, reason, message)
        self._state.add_event(self._job.name, reason, message)
        self._record_pods()

    def _record_failure(self, decision: Decision) -> None:
        """Write the first failure into the status, with its log's last lines."""
        item = decision.termination
        assert item is not None
        log: list[str] = []
        with contextlib.suppress(OSError):
            log = read_last_lines(self._directory.log_file(item.name), _FAILURE_LINES)
        self._state.status.failure = Failure(
            item.name, item.exit_code, item.reason, describe_termination(item), log, self._state.attempt
        )

    def _can_shrink(self, gang: ProcessGang, now: float) -> bool:
        """Return whether an elastic job can run with the workers that could be started."""
        started = sum(pod.replica_type == WORKER and pod.pid is not None for pod in gang.pods)
        self._capacity.record_missing(self._job, started, now)
        return self._capacity.get_available(self._job, now) == started

    def _resize(self, gang: ProcessGang, workers: int) -> None:
        """Terminate the gang, which writes a checkpoint after its step, and restart it with another worker count."""
        message = f"{workers} workers instead of {gang.workers}: the gang restarts from its checkpoint"
        self._end_gang(None, "Resized")
        if (decision := self._make_decision(gang)).action == "succeed":
            self._finish_succeeded(decision.reason, decision.message)
        else:
            self._restart(gang, "JobScaled", message, 0.0, peers="Resized")

    def _suspend(self) -> None:
        if self._state.status.has(SUSPENDED) and self._gang is None:
            return
        self._end_gang(None, "Suspended")
        self._gang = None
        self._state.pods = []
        self._state.status.start_time = None
        self._state.status.set_condition(SUSPENDED, "JobSuspended", "the job is suspended")
        self._state.add_event(self._job.name, "Suspended", "the job is suspended")
        self._record_pods()

    def _is_past_deadline(self) -> bool:
        seconds = self._job.effective_run_policy.active_deadline_seconds
        start = self._state.status.start_time
        return seconds is not None and start is not None and (now() - start).total_seconds() >= seconds

    def _finish_succeeded(self, reason: str, message: str) -> None:
        if self._gang is not None and self._job.effective_run_policy.clean_pod_policy != "None":
            self._gang.wait(_SETTLE_SECONDS, self._is_interrupted)
            self._end_gang(None, "Cleaned")
        self._state.status.set_condition(SUCCEEDED, reason, message)
        self._state.status.completion_time = now()
        self._state.add_event(self._job.name, reason, message)
        self._record_pods()

    def _finish_failed(self, reason: str, message: str, *, grace: float | None) -> None:
        if self._gang is not None and self._gang.is_hung:
            self._gang.dump_stacks()
        self._end_gang(grace, "Killed")
        self._state.fail(self._job.name, reason, message)
        self._record_pods()

    def _clean_up(self) -> None:
        policy = self._job.effective_run_policy
        end = self._state.status.completion_time or now()
        seconds = (now() - end).total_seconds()
        if policy.clean_pod_policy == "All" and seconds >= _LINGER_SECONDS and self._state.pods:
            for pod in self._state.pods:
                self._directory.log_file(pod.name).unlink(missing_ok=True)
            self._state.pods = []
            self._is_unsaved = True
        ttl = policy.ttl_seconds_after_finished
        if ttl is not None and seconds >= max(ttl, _LINGER_SECONDS):
            self._end_gang(None, "Cleaned")
            self._directory.remove()
            self._is_done = True
        elif ttl is None and not self._is_unsaved:
            waits_for_logs = policy.clean_pod_policy == "All" and bool(self._state.pods)
            self._is_done = not waits_for_logs and (self._gang is None or not self._gang.is_running())

    def _end_gang(self, grace_seconds: float | None, reason: str) -> None:
        if self._gang is not None:
            self._gang.end(self._gang.grace_seconds if grace_seconds is None else grace_seconds, reason)

    def _record_pods(self) -> None:
        if self._gang is not None:
            self._state.pods = self._gang.pods
        self._state.count_replicas(get_requested_workers(self._job))
        self._is_unsaved = True

    def _save(self) -> None:
        try:
            self._directory.write_state(self._state)
        except OSError as error:
            # A full disk: retried at every step.
            print(f"{self._directory.path}: the status cannot be written: {error}", file=sys.stderr)
        else:
            self._is_unsaved = False


def main(path: str) -> None:
    """Supervise the job in a directory."""
    directory = JobDirectory(Path(path))
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    directory.write_supervisor(identity)
    try:
        JobSupervisor(directory).run()
        return
    except ForkedChild as child:
        forked = child.with_traceback(None)
    forked.run()


if __name__ == "__main__":
    main(sys.argv[1])
