"""Supervisor of one local job: `python -m kfp_mindspore.msjob.backends.supervisor DIRECTORY`.

Single-threaded, since on Linux children die with the thread that started them, and with few imports, for a fast start.
`restart.decide_job_phase` makes its decisions; requests of clients are files in the job's directory.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from kfp_mindspore.errors import UserError
from kfp_mindspore.local.lease import is_lease_held
from kfp_mindspore.local.process import ProcessIdentity, adopt_orphans, reap_orphans
from kfp_mindspore.msjob.backends.gang import Gang
from kfp_mindspore.msjob.backends.state import JobDirectory, count_replicas
from kfp_mindspore.msjob.manifest import now
from kfp_mindspore.msjob.names import RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from kfp_mindspore.msjob.restart import compute_restart_delay, decide_job_phase

_POLL_SECONDS = 0.15
# After the job has succeeded, members that are about to end may do so before they are told to.
_SETTLE_SECONDS = 3.0
# A foreground run that was killed has no patience left.
_ORPHANED_GRACE_SECONDS = 2.0
# Whoever waits for a job with a TTL of 0 still gets to see its end.
_LINGER_SECONDS = 1.0


class Supervisor:
    """The owner of one job's processes.

    Args:
        directory: The job's directory.
        wakeups: Descriptor that becomes readable on a signal.
    """

    def __init__(self, directory: JobDirectory, wakeups: int) -> None:
        self._directory = directory
        self._wakeups = wakeups
        self._submission = directory.read_submission()
        self._record = directory.read_record()
        self._job = directory.read_job()
        self._version = self._read_version()
        self._gang: Gang | None = None
        self._start_at = 0.0
        self._unsaved = False
        self._terminated = False
        self._over = False

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Take note of SIGTERM: a request to delete, or somebody wants this process to go."""
        self._terminated = True

    def run(self) -> None:
        """Look after the job until nothing is left to be done."""
        while not self._over:
            self._step()
            # Writing would make a removed directory anew.
            if self._unsaved and self._directory.exists():
                self._save()
            if not self._over:
                select.select([self._wakeups], [], [], self._choose_pause())
                self._drain()

    def _step(self) -> None:
        if self._is_interrupted():
            self._end_interrupted()
            return
        self._reload()
        status = self._record.status
        if self._gang is not None and self._gang.poll():
            self._note_pods()
        if status.is_finished:
            self._tidy_finished()
        elif self._job.effective_run_policy.suspend:
            self._suspend()
        elif self._is_past_deadline():
            seconds = self._job.effective_run_policy.active_deadline_seconds
            self._finish_failed("DeadlineExceeded", f"ran longer than {seconds} s", grace=None)
        elif self._gang is None:
            if time.monotonic() >= self._start_at:
                self._start()
        else:
            self._judge()

    def _is_interrupted(self) -> bool:
        return (
            self._terminated
            or not self._directory.exists()
            or self._directory.read_delete() is not None
            or not self._is_lease_held()
        )

    def _is_lease_held(self) -> bool:
        return not self._submission.lease or is_lease_held(self._submission.lease)

    def _end_interrupted(self) -> None:
        self._over = True
        if not self._directory.exists():
            self._end_gang(0.0, "Deleted")
            return
        request = self._directory.read_delete()
        if request is not None:
            self._end_gang(request[0], "Deleted")
            self._directory.remove()
            return
        orphaned = not self._is_lease_held()
        if self._record.status.is_finished:
            self._end_gang(_ORPHANED_GRACE_SECONDS, "Killed")
        elif orphaned:
            self._finish_failed("OwnerGone", "the run that started this job is gone", grace=_ORPHANED_GRACE_SECONDS)
        else:
            self._finish_failed("SupervisorTerminated", "the job's supervisor was asked to end", grace=None)

    def _reload(self) -> None:
        version = self._read_version()
        if version == self._version:
            return
        try:
            self._job = self._directory.read_job()
        except UserError:
            # Deleted in between, which the next step sees.
            return
        self._version = version

    def _read_version(self) -> tuple[int, int]:
        try:
            stat = self._directory.job_file.stat()
        except FileNotFoundError:
            return (0, 0)
        return (stat.st_ino, stat.st_mtime_ns)

    def _start(self) -> None:
        record = self._record
        if record.status.has(SUSPENDED):
            record.status.set_condition(SUSPENDED, "JobResumed", "the job was resumed", status=False)
        if record.status.start_time is None:
            record.status.start_time = now()
        self._gang = Gang(self._job, record.restarts)
        self._gang.start(self._directory, self._submission)
        pods = self._gang.pods
        if self._gang.is_running():
            names = ", ".join(f"{pod.name} (pid {pod.pid})" for pod in pods if pod.pid)
            record.status.set_condition(RUNNING, "JobRunning", f"started {names}")
            record.add_event(self._job.name, "Started", f"started {names}")
        self._note_pods()

    def _judge(self) -> None:
        assert self._gang is not None
        policy = self._job.effective_run_policy
        decision = decide_job_phase(
            self._gang.endings,
            success_policy=self._job.success_policy or "",
            restarts=self._record.restarts,
            backoff_limit=policy.backoff_limit or 0,
        )
        if decision.action == "succeed":
            self._finish_succeeded(decision.reason, decision.message)
        elif decision.action == "fail":
            # The others would wait for the lost member for half a minute.
            self._finish_failed(decision.reason, decision.message, grace=0.0)
        elif decision.action == "restart":
            self._end_gang(0.0, "PeerFailed")
            self._record.restarts += decision.counted
            self._gang = None
            self._start_at = time.monotonic() + compute_restart_delay(self._record.restarts)
            self._record.status.set_condition(RESTARTING, decision.reason, decision.message)
            self._record.add_event(self._job.name, decision.reason, decision.message)
            self._unsaved = True

    def _suspend(self) -> None:
        if self._record.status.has(SUSPENDED) and self._gang is None:
            return
        self._end_gang(None, "Suspended")
        self._gang = None
        self._record.pods = []
        self._record.status.start_time = None
        self._record.status.set_condition(SUSPENDED, "JobSuspended", "the job is suspended")
        self._record.add_event(self._job.name, "Suspended", "the job is suspended")
        self._note_pods()

    def _is_past_deadline(self) -> bool:
        seconds = self._job.effective_run_policy.active_deadline_seconds
        start = self._record.status.start_time
        return seconds is not None and start is not None and (now() - start).total_seconds() >= seconds

    def _finish_succeeded(self, reason: str, message: str) -> None:
        if self._gang is not None and self._job.effective_run_policy.clean_pod_policy != "None":
            self._gang.wait(_SETTLE_SECONDS, self._is_interrupted)
            self._end_gang(None, "Cleaned")
        self._record.status.set_condition(SUCCEEDED, reason, message)
        self._record.status.completion_time = now()
        self._record.add_event(self._job.name, reason, message)
        self._note_pods()

    def _finish_failed(self, reason: str, message: str, *, grace: float | None) -> None:
        self._end_gang(grace, "Killed")
        self._record.fail(self._job.name, reason, message)
        self._note_pods()

    def _tidy_finished(self) -> None:
        policy = self._job.effective_run_policy
        end = self._record.status.completion_time or now()
        seconds = (now() - end).total_seconds()
        if policy.clean_pod_policy == "All" and seconds >= _LINGER_SECONDS and self._record.pods:
            for pod in self._record.pods:
                self._directory.log_file(pod.name).unlink(missing_ok=True)
            self._record.pods = []
            self._unsaved = True
        ttl = policy.ttl_seconds_after_finished
        if ttl is not None and seconds >= max(ttl, _LINGER_SECONDS):
            self._end_gang(None, "Cleaned")
            self._directory.remove()
            self._over = True
        elif ttl is None and not self._unsaved:
            waits_for_logs = policy.clean_pod_policy == "All" and bool(self._record.pods)
            self._over = not waits_for_logs and (self._gang is None or not self._gang.is_running())

    def _end_gang(self, grace_seconds: float | None, reason: str) -> None:
        if self._gang is not None:
            self._gang.end(self._gang.grace_seconds if grace_seconds is None else grace_seconds, reason)

    def _note_pods(self) -> None:
        if self._gang is not None:
            self._record.pods = self._gang.pods
        count_replicas(self._record)
        self._unsaved = True

    def _save(self) -> None:
        try:
            self._directory.write_record(self._record)
        except OSError as error:
            # A full disk: tried again at every step, for as long as this process has anything to do.
            print(f"{self._directory.path}: the status cannot be written: {error}", file=sys.stderr)
        else:
            self._unsaved = False

    def _choose_pause(self) -> float:
        if self._gang is None and not self._record.status.is_finished:
            return max(0.0, min(_POLL_SECONDS, self._start_at - time.monotonic()))
        return _POLL_SECONDS

    def _drain(self) -> None:
        try:
            os.read(self._wakeups, 4096)
        except BlockingIOError:
            return
        members = [pod.pid for pod in self._gang.pods if pod.pid] if self._gang is not None else []
        reap_orphans(members)


def main(path: str) -> None:
    """Look after the job in a directory."""
    directory = JobDirectory(Path(path))
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    directory.write_supervisor(identity)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    adopt_orphans()
    supervisor = Supervisor(directory, reader)
    signal.signal(signal.SIGTERM, supervisor.terminate)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        supervisor.run()
    except BaseException:
        # Children die with this process; why it did is kept beside their logs.
        traceback.print_exc()
        raise


if __name__ == "__main__":
    main(sys.argv[1])
