"""The job backend interface."""

from __future__ import annotations

import abc
import datetime
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kfp_mindspore.msjob.api.manifest import deserialize, parse_time, serialize
from kfp_mindspore.msjob.api.names import KIND
from kfp_mindspore.msjob.types import MSJob

# Grace period for a cancelled job's processes to save a checkpoint.
CANCEL_GRACE_SECONDS = 5.0


@dataclass
class Pod:
    """A running job member: a pod on a cluster, a process on this machine.

    Attributes:
        name: `<job>-<scheduler|ps|worker>-<index>`.
        namespace: Job namespace.
        replica_type: `Scheduler`, `PS` or `Worker`.
        index: Index within the type.
        phase: `Pending`, `Running`, `Succeeded` or `Failed`.
        labels: Labels, the training.kubeflow.org ones among them.
        node: Node name; None on this machine.
        pid: Process number; None on a cluster, and before the start.
        process_start: The process's start time; see ProcessIdentity.
        exit_code: As a shell reports it (128 + signal); None while it runs.
        reason: Termination reason: `Completed`, `Error`, `StartError`, `Killed` …; on a cluster also a waiting
            reason.
        message: Details.
        restarts: Restart count.
        start_time: When it was last started.
        finish_time: When it was terminated.
    """

    name: str
    namespace: str
    replica_type: str
    index: int
    phase: str = "Pending"
    labels: dict[str, str] = field(default_factory=dict)
    node: str | None = None
    pid: int | None = None
    process_start: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    restarts: int = 0
    start_time: datetime.datetime | None = None
    finish_time: datetime.datetime | None = None

    def __post_init__(self) -> None:
        self.start_time = parse_time(self.start_time)
        self.finish_time = parse_time(self.finish_time)

    @property
    def metadata(self) -> SimpleNamespace:
        """Name, namespace and labels, as in a V1Pod."""
        return SimpleNamespace(name=self.name, namespace=self.namespace, labels=dict(self.labels))

    @property
    def status(self) -> SimpleNamespace:
        """Phase, reason, message and start time, as in a V1Pod."""
        return SimpleNamespace(phase=self.phase, reason=self.reason, message=self.message, start_time=self.start_time)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Pod:
        """Rebuild a pod from `to_dict`'s result."""
        return cls(**deserialize(cls, document))

    def to_dict(self) -> dict[str, Any]:
        """Return the pod as JSON types."""
        document: dict[str, Any] = serialize(self)
        return document


@dataclass(frozen=True)
class JobEvent:
    """An event on a job or one of its pods.

    Attributes:
        time: RFC 3339.
        object: Job or pod name.
        reason: One machine-readable word.
        message: A sentence.
    """

    time: str
    object: str
    reason: str
    message: str


class JobBackend(abc.ABC):
    """Runs jobs; users call them through MSJobClient."""

    @property
    def default_namespace(self) -> str:
        """The namespace for jobs without one."""
        return "default"

    def list_flags(self) -> Sequence[str]:
        """Return the command-line flags that select this backend where the environment does not."""
        return ()

    def name_command(self, *words: str, namespace: str = "") -> str:
        """Return a `kfp-mindspore job` command line for jobs on this backend.

        Args:
            words: The command's words, such as `logs` and a job's name.
            namespace: The job's namespace.
        """
        where = ["--namespace", namespace] if namespace not in ("", self.default_namespace) else []
        return shlex.join(["kfp-mindspore", "job", *words, *self.list_flags(), *where])

    @abc.abstractmethod
    def create(self, job: MSJob, *, dry_run: bool = False) -> MSJob:
        """Submit a job and return it with its status; it outlives this process.

        Args:
            job: The job.
            dry_run: Only validate it, and return it as it would be stored.

        Raises:
            AlreadyExistsError: A job with this name exists in its namespace.
            ValidationError: It is invalid, or this backend cannot run it; the message names the fields.
        """

    def explain_queue(self, job: MSJob, kind: str = KIND) -> str:
        """Return why a job's Kueue queue cannot start it, in a sentence; empty when it can, or when that is unknown.

        Args:
            job: The job, as submitted.
            kind: The kind that it was submitted as.
        """
        return ""

    @abc.abstractmethod
    def get(self, name: str, namespace: str) -> MSJob:
        """Return a job with its status.

        Raises:
            NotFoundError: The job does not exist.
        """

    def watch(
        self, name: str, namespace: str, *, timeout: float | None = None, interval: float = 0.1
    ) -> Iterator[MSJob]:
        """Yield the present job, and again after each change.

        Args:
            name: The job.
            namespace: Job namespace.
            timeout: Seconds; None for no limit.
            interval: Polling interval in seconds for a backend without a watch.

        Raises:
            NotFoundError: The job does not exist, or was deleted.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            yield self.get(name, namespace)
            left = interval if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(interval, left))

    @abc.abstractmethod
    def list_jobs(self, namespace: str) -> list[MSJob]:
        """Return the jobs in a namespace by name."""

    @abc.abstractmethod
    def update(self, name: str, namespace: str, patch: dict[str, Any]) -> MSJob:
        """Merge a patch into a job's metadata and spec (RFC 7396: null removes a field).

        Raises:
            NotFoundError: The job does not exist.
            ValidationError: The result is invalid, or an immutable field changes.
        """

    @abc.abstractmethod
    def delete(self, name: str, namespace: str, *, grace_seconds: float | None = None) -> None:
        """Delete a job and wait until its processes are gone.

        Args:
            name: The job.
            namespace: Job namespace.
            grace_seconds: Seconds between SIGTERM and SIGKILL; default the template's terminationGracePeriodSeconds.

        Raises:
            NotFoundError: The job does not exist.
        """

    def cancel(self, job: MSJob) -> None:
        """Request a job's deletion without waiting for its end, for a client that is about to be killed.

        Args:
            job: The job, as `create` or `get` returned it.
        """
        self.delete(job.name, job.namespace, grace_seconds=CANCEL_GRACE_SECONDS)

    @abc.abstractmethod
    def list_pods(self, name: str, namespace: str) -> Sequence[Pod]:
        """Return a job's pods: scheduler, parameter servers, workers by rank."""

    @abc.abstractmethod
    def list_events(self, name: str, namespace: str) -> Sequence[JobEvent]:
        """Return the events on a job and its pods, oldest first."""

    @abc.abstractmethod
    def read_log(self, name: str, namespace: str, pod: str, *, last: int | None = None) -> str:
        """Return a pod's log; empty before the first line.

        Args:
            name: The job.
            namespace: Job namespace.
            pod: The pod.
            last: How many last lines; default all.
        """

    @abc.abstractmethod
    def follow_logs(
        self,
        name: str,
        namespace: str,
        pod_filter: Callable[[Pod], bool],
        *,
        timeout: float | None = None,
        on_change: Callable[[MSJob], object] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Yield (pod name, line) from the chosen pods, from their first line until the job is finished or deleted.

        Args:
            name: The job.
            namespace: Job namespace.
            pod_filter: Predicate for the pods to follow.
            timeout: Seconds; None for no limit.
            on_change: Called with the job at first and after each change, between two lines; not called for jobs on
                this machine, whose processes wait for nothing.

        Raises:
            NotFoundError: The job does not exist.
            WaitTimeoutError: The timeout has passed.
        """
