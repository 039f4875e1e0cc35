"""The local backend: jobs as processes on this machine, each job with its own detached supervisor.

Clients and the supervisor share a job's directory; each file is written whole.

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

import contextlib
import copy
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import kfp_mindspore
from kfp_mindspore.errors import (
    AlreadyExistsError,
    KfpMindSporeError,
    NotFoundError,
    UserError,
    ValidationError,
    WaitTimeoutError,
)
from kfp_mindspore.files import create_directory, get_home, read_json, write_bytes
from kfp_mindspore.local.lease import is_lease_held
from kfp_mindspore.local.logs import LogReader, read_last_lines
from kfp_mindspore.local.process import ProcessIdentity, kill_leader, start_supervisor
from kfp_mindspore.local.state import StateDirectory
from kfp_mindspore.msjob.api.manifest import deserialize, format_time, now, parse_time, serialize
from kfp_mindspore.msjob.api.names import CREATED, FAILED, WORKER
from kfp_mindspore.msjob.api.status import DetailedStatus, ReplicaStatus
from kfp_mindspore.msjob.backends.base import JobBackend, JobEvent, Pod
from kfp_mindspore.msjob.backends.gang import check_job
from kfp_mindspore.msjob.decisions.elastic import get_requested_workers
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.settings import HOME_VARIABLE, LEASE_VARIABLE, LOCAL, get_backend_name

_SUPERVISOR = "kfp_mindspore.msjob.backends.supervisor"
_PACKAGE_ROOT = str(Path(kfp_mindspore.__file__).absolute().parent.parent)
_MUTABLE = frozenset({"runPolicy", "elasticPolicy", "warmSpares"})
_POLL_SECONDS = 0.05
# Seconds that the supervisor may take beyond the grace period before it is killed.
_END_SECONDS = 10.0
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
        pods: The job's members.
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
            state: The job's state as read.
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


class LocalBackend(JobBackend):
    """Runs jobs as processes on this machine; `gang` lists which template fields it honours.

    Args:
        home: Local state directory; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        self.home = Path(home).absolute() if home is not None else get_home()

    def list_flags(self) -> Sequence[str]:
        """Return the command-line flags that select this machine."""
        return () if get_backend_name() == LOCAL else ("--backend", LOCAL)

    def create(self, job: MSJob, *, dry_run: bool = False) -> MSJob:
        """Start a job's supervisor and return; see `JobBackend.create`.

        It runs in this process's directory and environment, and ends with the lease holder that these name.
        """
        validate_msjob(job)
        environment = dict(os.environ)
        cwd = Path.cwd()
        warnings = check_job(job, environment=environment, cwd=cwd)
        if dry_run:
            return job
        lease = environment.get(LEASE_VARIABLE, "")
        if lease and not is_lease_held(lease):
            raise KfpMindSporeError(
                f"job {job.name} is not started: the run that it would belong to is gone ({LEASE_VARIABLE}={lease})"
            )
        new = MSJob.from_dict({**job.to_dict(), "status": None}, validate=False)
        new.status = None
        new.metadata.update(
            {
                "name": job.name,
                "namespace": job.namespace,
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": format_time(now()),
            }
        )
        state = JobState()
        state.status.set_condition(CREATED, "JobCreated", f"job {job.name} was created")
        for warning in warnings:
            state.add_event(job.name, "NotHonoured", warning)
        path = self._get_path(job.name, job.namespace)
        # Removes a job with this name whose TTL has passed.
        with contextlib.suppress(NotFoundError):
            self.get(job.name, job.namespace)
        try:
            directory = JobDirectory.create(path, new, JobRequest(str(cwd), environment, lease), state)
        except FileExistsError:
            raise AlreadyExistsError(
                f"job {job.name} exists already in namespace {job.namespace}",
                hint="Choose another name, or delete it: "
                + self.name_command("delete", job.name, namespace=job.namespace),
            ) from None
        except OSError as error:
            raise UserError(
                f"job {job.name} cannot be written to {path}: {error.strerror or error}",
                hint=f"Set {HOME_VARIABLE} to a directory that you can write to.",
            ) from error
        try:
            identity = start_supervisor(
                _SUPERVISOR,
                path,
                cwd="/",
                # The job's own PYTHONPATH must not shadow the supervisor's modules.
                env={"PYTHONUNBUFFERED": "1", **environment, "PYTHONPATH": _PACKAGE_ROOT},
                log=directory.supervisor_log,
            )
        except OSError as error:
            directory.remove()
            raise KfpMindSporeError(f"job {job.name}: its supervisor cannot be started: {error}") from error
        with directory.lock():
            if directory.exists():
                directory.write_supervisor(identity)
        new.status = state.status
        return new

    def get(self, name: str, namespace: str) -> MSJob:
        """Return a job with its status; see `JobBackend.get`."""
        job, state = self._read(name, namespace)
        job.status = state.status
        return job

    def list_jobs(self, namespace: str) -> list[MSJob]:
        """Return the jobs in a namespace by name."""
        folder = self.home / "jobs" / namespace
        if not folder.is_dir():
            return []
        jobs = []
        for path in sorted(folder.iterdir()):
            if not path.name.startswith("."):
                with contextlib.suppress(NotFoundError):
                    jobs.append(self.get(path.name, namespace))
        return jobs

    def update(self, name: str, namespace: str, patch: dict[str, Any]) -> MSJob:
        """Apply a merge patch; in the spec, runPolicy, elasticPolicy, warmSpares and the worker count are mutable.

        See `JobBackend.update`. Another worker count restarts the gang from its checkpoint.
        """
        job, state = self._read(name, namespace)
        directory = JobDirectory(self._get_path(name, namespace))
        with directory.lock():
            job = self._read_job(directory, name, namespace)
            old = job.to_dict()
            patch = {key: value for key, value in patch.items() if key != "status"}
            merged = merge_patch(old, patch)
            for key in ("name", "namespace", "uid", "creationTimestamp", "generation"):
                merged["metadata"][key] = old["metadata"][key]
            changed = MSJob.from_dict(merged)
            before, after = job.to_dict()["spec"], changed.to_dict()["spec"]
            fixed = _list_fixed(before, after)
            if fixed:
                raise ValidationError(
                    [f"spec.{key}: cannot be changed" for key in sorted(fixed)],
                    subject=f"Update of MSJob {name}",
                    hint="Delete the job and submit it again.",
                )
            if before != after:
                changed.metadata["generation"] += 1
            directory.write_job(changed)
        changed.status = state.status
        return changed

    def delete(self, name: str, namespace: str, *, grace_seconds: float | None = None) -> None:
        """Delete a job; see `JobBackend.delete`."""
        directory = self._open(name, namespace)
        job = self._read_job(directory, name, namespace)
        longest = max(spec.grace_seconds for spec in job.ms_replica_specs.values())
        timeout = (longest if grace_seconds is None else grace_seconds) + _END_SECONDS
        with contextlib.suppress(FileNotFoundError):
            directory.request_delete(grace_seconds)
        supervisor = directory.read_supervisor()
        if supervisor is not None and supervisor.send(signal.SIGTERM):
            supervisor.wait(timeout)
        # A supervisor that terminated normally has removed the directory.
        with contextlib.suppress(UserError):
            kill_leftovers(directory.read_state(), supervisor)
        directory.remove()

    def list_pods(self, name: str, namespace: str) -> Sequence[Pod]:
        """Return a job's processes: scheduler, parameter servers, workers by rank."""
        return self._read(name, namespace)[1].pods

    def list_events(self, name: str, namespace: str) -> Sequence[JobEvent]:
        """Return the events on a job and its processes, oldest first."""
        return self._read(name, namespace)[1].events

    def read_log(self, name: str, namespace: str, pod: str, *, last: int | None = None) -> str:
        """Return a process's log, from all attempts; see `JobBackend.read_log`."""
        path = self._open(name, namespace).log_file(pod)
        if last is not None:
            return "".join(f"{line}\n" for line in read_last_lines(path, last))
        try:
            return path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def follow_logs(
        self,
        name: str,
        namespace: str,
        pod_filter: Callable[[Pod], bool],
        *,
        timeout: float | None = None,
        on_change: Callable[[MSJob], object] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Yield (process name, line) until the job is finished or deleted; see `JobBackend.follow_logs`."""
        directory = self._open(name, namespace)
        deadline = None if timeout is None else time.monotonic() + timeout
        readers: dict[str, LogReader] = {}
        while True:
            try:
                _, state = self._read(name, namespace)
                is_finished = state.status.is_finished
                for pod in state.pods:
                    if pod.name not in readers and pod_filter(pod):
                        readers[pod.name] = LogReader(directory.log_file(pod.name))
            except NotFoundError:
                is_finished = True
            for pod_name, reader in readers.items():
                for line in reader.read(final=is_finished):
                    yield pod_name, line
            if is_finished:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"job {name} has not ended after {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def get_supervisor(self, name: str, namespace: str) -> ProcessIdentity | None:
        """Return a job supervisor's identity, which may have terminated; None before its start."""
        return self._open(name, namespace).read_supervisor()

    def _get_path(self, name: str, namespace: str) -> Path:
        for what, word in (("job", name), ("namespace", namespace)):
            if not word or "/" in word or word.startswith("."):
                raise NotFoundError(f"{what} {word!r}: no such {what}")
        return self.home / "jobs" / namespace / name

    def _open(self, name: str, namespace: str) -> JobDirectory:
        directory = JobDirectory(self._get_path(name, namespace))
        if not directory.exists():
            raise NotFoundError(
                f"job {name} does not exist in namespace {namespace}",
                hint=f"`{self.name_command('list', namespace=namespace)}` lists the jobs.",
            )
        return directory

    def _read_job(self, directory: JobDirectory, name: str, namespace: str) -> MSJob:
        try:
            return directory.read_job()
        except UserError:
            if directory.exists():
                raise
            self._refuse(name, namespace)

    def _read(self, name: str, namespace: str) -> tuple[MSJob, JobState]:
        directory = self._open(name, namespace)
        job = self._read_job(directory, name, namespace)
        try:
            state = directory.recover(job, directory.read_state())
        except UserError:
            if directory.exists():
                raise
            self._refuse(name, namespace)
        if not directory.exists():
            self._refuse(name, namespace)
        return job, state

    def _refuse(self, name: str, namespace: str) -> NoReturn:
        raise NotFoundError(f"job {name} does not exist in namespace {namespace}: it was deleted")


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


def _list_fixed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the immutable fields that differ between two specs."""
    before, after = copy.deepcopy(before), copy.deepcopy(after)
    for spec in (before, after):
        spec["msReplicaSpecs"].get(WORKER, {}).pop("replicas", None)
    return [key for key in {*before, *after} if key not in _MUTABLE and before.get(key) != after.get(key)]


def merge_patch(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return a document with a JSON merge patch applied (RFC 7396): mappings merge, null removes, the rest replaces."""
    merged = dict(document)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge_patch(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged
