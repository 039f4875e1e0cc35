"""A local job's directory: what the client and the supervisor tell each other, each file written whole.

<home>/jobs/<namespace>/<name>/
  job.json          metadata and spec, written by the client
  submission.json   the submitting process's environment, directory and lease; mode 0600
  status.json       conditions, pods, events; written by the supervisor, and by a client when that is dead
  supervisor.json   the supervisor's identity
  delete.json       request to end everything and remove this directory
  reserve           room for the last status when the disk is full
  logs/<pod>.log    supervisor.log
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.files import read_json, write_bytes, write_json
from kfp_mindspore.local.process import ProcessIdentity, kill_session
from kfp_mindspore.msjob.backends.base import Event, Pod
from kfp_mindspore.msjob.manifest import format_time, now, serialize
from kfp_mindspore.msjob.names import FAILED
from kfp_mindspore.msjob.status import JobStatus, ReplicaStatus
from kfp_mindspore.msjob.types import MSJob

_RESERVE_BYTES = 64 * 1024
_MAXIMUM_EVENTS = 200
# A killed process in an uninterruptible wait may take a moment.
_KILL_SECONDS = 5.0


@dataclass
class JobRequest:
    """Where and how a job was submitted.

    Attributes:
        cwd: Directory.
        environment: The whole environment.
        lease: File of the lease that the job was started under; empty for none.
    """

    cwd: str
    environment: dict[str, str]
    lease: str = ""


@dataclass
class JobState:
    """What a supervisor knows, all in one file so that it is always consistent.

    Attributes:
        status: The job's status.
        pods: Its members.
        events: What happened, oldest first.
        restarts: How often the gang was restarted.
    """

    status: JobStatus = field(default_factory=JobStatus)
    pods: list[Pod] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    restarts: int = 0

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> JobState:
        """Rebuild a record from `to_dict`'s result."""
        return cls(
            JobStatus.from_dict(document["status"]),
            [Pod.from_dict(item) for item in document["pods"]],
            [Event(**item) for item in document["events"]],
            document["restarts"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON types."""
        document: dict[str, Any] = serialize(self)
        return document

    def add_event(self, name: str, reason: str, message: str) -> None:
        """Note something that happened to the job or a pod; the oldest are forgotten."""
        self.events.append(Event(format_time(now()), name, reason, message))
        del self.events[:-_MAXIMUM_EVENTS]

    def fail(self, job_name: str, reason: str, message: str) -> None:
        """Set the condition `Failed`."""
        self.status.set_condition(FAILED, reason, message)
        self.status.completion_time = now()
        self.add_event(job_name, reason, message)


class JobDirectory:
    """One local job on disk.

    Args:
        path: Its directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job_file = path / "job.json"
        self.logs = path / "logs"
        self.supervisor_log = self.logs / "supervisor.log"
        self._status_file = path / "status.json"
        self._submission_file = path / "submission.json"
        self._supervisor_file = path / "supervisor.json"
        self._delete_file = path / "delete.json"
        self._reserve = path / "reserve"

    def exists(self) -> bool:
        """Tell whether the job is there."""
        return self.job_file.is_file()

    @classmethod
    def create(cls, path: Path, job: MSJob, submission: JobRequest, record: JobState) -> JobDirectory:
        """Write a new job's directory, whole or not at all.

        Raises:
            FileExistsError: There is one.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
        temporary.mkdir()
        try:
            new = cls(temporary)
            new.logs.mkdir()
            new._reserve.write_bytes(b"\0" * _RESERVE_BYTES)
            write_bytes(new._submission_file, _encode(serialize(submission)), mode=0o600)
            new.write_record(record)
            new.write_job(job)
            try:
                temporary.rename(path)
            except OSError as error:
                if path.exists():
                    raise FileExistsError(path) from error
                raise
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return cls(path)

    def read_job(self) -> MSJob:
        """Return metadata and spec, with no status."""
        return MSJob.from_dict(read_json(self.job_file), validate=False)

    def write_job(self, job: MSJob) -> None:
        """Write metadata and spec."""
        document = job.to_dict()
        document.pop("status", None)
        write_json(self.job_file, document)

    def read_record(self) -> JobState:
        """Return what the supervisor wrote last."""
        return JobState.from_dict(read_json(self._status_file))

    def write_record(self, record: JobState) -> None:
        """Write the record; when the disk is full, in the room that was kept for it."""
        record.status.last_reconcile_time = now()
        document = record.to_dict()
        try:
            write_json(self._status_file, document)
        except OSError:
            if not self._reserve.exists():
                raise
            self._reserve.unlink()
            write_json(self._status_file, document)

    def read_submission(self) -> JobRequest:
        """Return how the job was submitted."""
        return JobRequest(**read_json(self._submission_file))

    def read_supervisor(self) -> ProcessIdentity | None:
        """Return the supervisor's identity; None before it was started."""
        try:
            return ProcessIdentity.from_dict(read_json(self._supervisor_file))
        except UserError:
            return None

    def write_supervisor(self, identity: ProcessIdentity) -> None:
        """Write the supervisor's identity."""
        write_json(self._supervisor_file, identity.to_dict())

    def request_delete(self, grace_seconds: float | None) -> None:
        """Ask the supervisor to end everything and remove the directory."""
        write_json(self._delete_file, {"graceSeconds": grace_seconds})

    def read_delete(self) -> tuple[float | None] | None:
        """Return the grace period of a request to delete, in a tuple; None when there is no request."""
        if not self._delete_file.exists():
            return None
        return (read_json(self._delete_file)["graceSeconds"],)

    def log_file(self, pod: str) -> Path:
        """Return the file with a pod's output."""
        return self.logs / f"{pod}.log"

    def remove(self) -> None:
        """Remove the directory: gone at once for readers, then file by file."""
        retired = self.path.parent / f".{self.path.name}.{uuid.uuid4().hex[:8]}.old"
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(retired)
            shutil.rmtree(retired, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other clients from changing the directory meanwhile."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def recover(self, job: MSJob, record: JobState, start_seconds: float = 10.0) -> JobState:
        """Close the books of a job whose supervisor was killed: its processes end, and it has failed.

        Args:
            job: The job.
            record: What was read of it.
            start_seconds: How long after its creation a job may be without a supervisor.

        Returns:
            The record as it is now.
        """
        supervisor = self.read_supervisor()
        if supervisor is not None and supervisor.is_alive():
            return record
        if record.status.is_finished:
            self._expire(job, record)
            return record
        if supervisor is None:
            created = datetime.datetime.fromisoformat(job.metadata["creationTimestamp"].replace("Z", "+00:00"))
            if (now() - created).total_seconds() < start_seconds:
                return record
        with contextlib.suppress(FileNotFoundError), self.lock():
            # It may have written its last word between the two looks.
            record = self.read_record()
            if record.status.is_finished:
                return record
            end_leftovers(record, supervisor)
            for pod in record.pods:
                if pod.phase in ("Pending", "Running"):
                    pod.phase, pod.reason, pod.finish_time = "Failed", "SupervisorLost", now()
            count_replicas(record)
            record.fail(job.name, "SupervisorLost", "the job's supervisor was killed; its processes were ended")
            self.write_record(record)
        return record

    def _expire(self, job: MSJob, record: JobState) -> None:
        ttl = job.effective_run_policy.ttl_seconds_after_finished
        end = record.status.completion_time
        if ttl is not None and end is not None and (now() - end).total_seconds() > ttl + 1:
            self.remove()


def end_leftovers(record: JobState, supervisor: ProcessIdentity | None) -> None:
    """Kill whatever a dead supervisor's processes left behind in their sessions.

    Args:
        record: What the supervisor wrote last.
        supervisor: The supervisor.
    """
    pods = [ProcessIdentity(pod.pid, pod.process_start) for pod in record.pods if pod.pid and pod.process_start]
    # The supervisor first: while it lives it might start them again.
    for leader in [*([supervisor] if supervisor is not None else []), *pods]:
        # On Linux the kernel has done so already.
        if leader.send(signal.SIGKILL):
            leader.wait(_KILL_SECONDS)
        if not leader.is_alive():
            kill_session(leader)


def count_replicas(record: JobState) -> None:
    """Write the counts of active, succeeded and failed replicas into the status."""
    counts: dict[str, ReplicaStatus] = {}
    for pod in record.pods:
        count = counts.setdefault(pod.replica_type, ReplicaStatus(0, 0, 0))
        if pod.phase == "Running":
            count.active = (count.active or 0) + 1
        elif pod.phase == "Succeeded":
            count.succeeded = (count.succeeded or 0) + 1
        elif pod.phase == "Failed":
            count.failed = (count.failed or 0) + 1
    record.status.replica_statuses = counts


def _encode(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()
