"""A local job's directory, shared by clients and the supervisor; each file is written whole.

<home>/jobs/<namespace>/<name>/
  job.json          metadata and spec, written by the client
  submission.json   the submitting process's environment, directory and lease; mode 0600
  status.json       conditions, pods, events; written by the supervisor, and by a client once that is dead
  supervisor.json   the supervisor's identity
  delete.json       request to terminate everything and remove this directory
  reserve           space for the last status when the disk is full
  heartbeats/       a file of each worker that trains
  progress.json     progress of the training, written by worker 0
  logs/<pod>.log    supervisor.log
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore.files import create_directory, read_json, write_bytes
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.local.state import StateDirectory
from kfp_mindspore.local.supervisor import kill_leader
from kfp_mindspore.msjob.backends.base import JobEvent, Pod
from kfp_mindspore.msjob.elastic import get_requested_workers
from kfp_mindspore.msjob.manifest import deserialize, format_time, now, parse_time, serialize
from kfp_mindspore.msjob.names import FAILED, WORKER
from kfp_mindspore.msjob.status import DetailedStatus, ReplicaStatus
from kfp_mindspore.msjob.types import MSJob

_MAXIMUM_EVENTS = 200


@dataclass
class JobRequest:
    """The context in which a job was submitted.

    Attributes:
        cwd: Directory.
        environment: The whole environment.
        lease: Lease file that the job was started under; empty without one.
    """

    cwd: str
    environment: dict[str, str]
    lease: str = ""


@dataclass
class JobState:
    """What a supervisor records, in one file so that it is always consistent.

    Attributes:
        status: The job's status.
        pods: Its members.
        events: Events, oldest first.
        restarts: Gang restarts after failures.
        attempt: The present gang's number, from 0.
    """

    status: DetailedStatus = field(default_factory=DetailedStatus)
    pods: list[Pod] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    restarts: int = 0
    attempt: int = 0

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> JobState:
        """Rebuild a state from `to_dict`'s result."""
        return cls(
            DetailedStatus(**deserialize(DetailedStatus, document["status"])),
            [Pod.from_dict(item) for item in document["pods"]],
            [JobEvent(**item) for item in document["events"]],
            document["restarts"],
            document.get("attempt", 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        document: dict[str, Any] = serialize(self)
        return document

    def add_event(self, name: str, reason: str, message: str) -> None:
        """Record an event on the job or a pod; the oldest beyond 200 are dropped."""
        self.events.append(JobEvent(format_time(now()), name, reason, message))
        del self.events[:-_MAXIMUM_EVENTS]

    def fail(self, job_name: str, reason: str, message: str) -> None:
        """Set the condition `Failed`."""
        self.status.set_condition(FAILED, reason, message)
        self.status.completion_time = now()
        self.add_event(job_name, reason, message)

    def count_replicas(self, requested_workers: int) -> None:
        """Write the counts for active, succeeded and failed replicas, restarts and attempts into the status.

        Args:
            requested_workers: Workers that the job requests.
        """
        counts: dict[str, ReplicaStatus] = {}
        for pod in self.pods:
            count = counts.setdefault(pod.replica_type, ReplicaStatus(0, 0, 0))
            if pod.phase == "Running":
                count.active = (count.active or 0) + 1
            elif pod.phase == "Succeeded":
                count.succeeded = (count.succeeded or 0) + 1
            elif pod.phase == "Failed":
                count.failed = (count.failed or 0) + 1
        self.status.replica_statuses = counts
        workers = counts.get(WORKER, ReplicaStatus(0, 0, 0))
        self.status.workers = f"{(workers.active or 0) + (workers.succeeded or 0)}/{requested_workers}"
        self.status.restarts, self.status.attempt = self.restarts, self.attempt


@dataclass(frozen=True)
class JobDirectory(StateDirectory):
    """One local job on disk."""

    @property
    def job_file(self) -> Path:
        """Metadata and spec."""
        return self.path / "job.json"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's output; empty unless it fails itself."""
        return self.log_file("supervisor")

    @property
    def heartbeats(self) -> Path:
        """Directory for the workers' heartbeats."""
        return self.path / "heartbeats"

    @property
    def progress_file(self) -> Path:
        """Training progress."""
        return self.path / "progress.json"

    def log_file(self, pod: str) -> Path:
        """Return the file with a pod's output."""
        return self.path / "logs" / f"{pod}.log"

    def exists(self) -> bool:
        """Return whether the job exists."""
        return self.job_file.is_file()

    @classmethod
    def create(cls, path: Path, job: MSJob, request: JobRequest, state: JobState) -> JobDirectory:
        """Write a new job's directory, whole or not at all.

        Raises:
            FileExistsError: The job exists.
        """
        with create_directory(path) as temporary:
            new = cls(temporary)
            new.supervisor_log.parent.mkdir()
            new.reserve()
            write_bytes(temporary / "submission.json", json.dumps(serialize(request)).encode(), mode=0o600)
            new.write_state(state)
            new.write_job(job)
        return cls(path)

    def read_job(self) -> MSJob:
        """Return metadata and spec, without status."""
        return MSJob.from_dict(read_json(self.job_file), validate=False)

    def write_job(self, job: MSJob) -> None:
        """Write metadata and spec."""
        self.write("job.json", {key: value for key, value in job.to_dict().items() if key != "status"})

    def read_state(self) -> JobState:
        """Return what the supervisor recorded last."""
        return JobState.from_dict(self.read("status.json"))

    def write_state(self, state: JobState) -> None:
        """Write the state."""
        state.status.last_reconcile_time = now()
        self.write("status.json", state.to_dict())

    def read_request(self) -> JobRequest:
        """Return the context in which the job was submitted."""
        return JobRequest(**self.read("submission.json"))

    def request_delete(self, grace_seconds: float | None) -> None:
        """Request that the supervisor terminates everything and removes the directory."""
        self.write("delete.json", {"graceSeconds": grace_seconds})

    def read_delete(self) -> tuple[float | None] | None:
        """Return the grace period in a delete request, in a tuple; None without a request."""
        if not (self.path / "delete.json").exists():
            return None
        return (self.read("delete.json")["graceSeconds"],)

    def recover(self, job: MSJob, state: JobState, start_seconds: float = 10.0) -> JobState:
        """Terminate the processes in a job whose supervisor was killed, and record that it failed.

        Args:
            job: The job.
            state: Its state as read.
            start_seconds: How long after its creation a job may be without a supervisor.

        Returns:
            The present state.
        """
        supervisor = self.read_supervisor()
        if supervisor is not None and supervisor.is_alive():
            return state
        if state.status.is_finished:
            self._expire(job, state)
            return state
        created = parse_time(job.metadata["creationTimestamp"])
        if supervisor is None and created and (now() - created).total_seconds() < start_seconds:
            return state
        with self.lock():
            if not self.exists():
                return state
            # The supervisor may have written its last state in between.
            state = self.read_state()
            if state.status.is_finished:
                return state
            kill_leftovers(state, supervisor)
            for pod in state.pods:
                if pod.phase in ("Pending", "Running"):
                    pod.phase, pod.reason, pod.finish_time = "Failed", "SupervisorLost", now()
            state.count_replicas(get_requested_workers(job))
            state.fail(job.name, "SupervisorLost", "the job's supervisor was killed; its processes were terminated")
            self.write_state(state)
        return state

    def _expire(self, job: MSJob, state: JobState) -> None:
        ttl = job.effective_run_policy.ttl_seconds_after_finished
        end = state.status.completion_time
        if ttl is not None and end is not None and (now() - end).total_seconds() > ttl + 1:
            self.remove()


def kill_leftovers(state: JobState, supervisor: ProcessIdentity | None) -> None:
    """Kill what a supervisor and its processes left in their sessions.

    Args:
        state: What the supervisor recorded last.
        supervisor: The supervisor.
    """
    pods = [ProcessIdentity(pod.pid, pod.process_start) for pod in state.pods if pod.pid and pod.process_start]
    # The supervisor first: it might restart the others.
    for leader in [*([supervisor] if supervisor is not None else []), *pods]:
        kill_leader(leader)
