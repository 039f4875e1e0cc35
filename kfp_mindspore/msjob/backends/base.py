"""What every backend does: the verbs that MSJobClient is made of."""

from __future__ import annotations

import abc
import datetime
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.msjob.manifest import deserialize, parse_time, serialize
from kfp_mindspore.msjob.types import MSJob


@dataclass
class Pod:
    """One member of a job as it runs: a pod on a cluster, a process here.

    Attributes:
        name: `<job>-<scheduler|ps|worker>-<index>`.
        namespace: The job's.
        replica_type: `Scheduler`, `PS` or `Worker`.
        index: Index within the type.
        phase: `Pending`, `Running`, `Succeeded` or `Failed`.
        labels: Labels, the training.kubeflow.org ones among them.
        node: The node that it runs on; None on this machine.
        pid: Process number; None on a cluster, and before it was started.
        process_start: What tells the process from a later one of the same number; see ProcessIdentity.
        exit_code: As a shell reports it (128 + signal); None while it runs.
        reason: Why it ended: `Completed`, `Error`, `StartError`, `Killed` …; on a cluster also why it does not start.
        message: More about it.
        restarts: How often it was started again.
        start_time: When it was started last.
        finish_time: When it ended.
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

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Pod:
        """Rebuild a pod from `to_dict`'s result."""
        return cls(**deserialize(cls, document))

    def to_dict(self) -> dict[str, Any]:
        """Return the pod as JSON types."""
        document: dict[str, Any] = serialize(self)
        return document


@dataclass(frozen=True)
class Event:
    """Something that happened to a job or one of its pods.

    Attributes:
        time: RFC 3339.
        object: Name of the job or pod.
        reason: One word for programs.
        message: A sentence for people.
    """

    time: str
    object: str
    reason: str
    message: str


class JobBackend(abc.ABC):
    """Where jobs run."""

    @property
    def default_namespace(self) -> str:
        """The namespace of jobs that name none."""
        return "default"

    def list_flags(self) -> Sequence[str]:
        """Return the flags by which the command line comes to this backend, where its environment does not."""
        return ()

    def name_command(self, *words: str, namespace: str = "") -> str:
        """Return a command line of `kfp-mindspore job` that means the same jobs, to be pasted.

        Args:
            words: Its words, such as `logs` and a job's name.
            namespace: The job's namespace.
        """
        where = ["--namespace", namespace] if namespace not in ("", self.default_namespace) else []
        return shlex.join(["kfp-mindspore", "job", *words, *self.list_flags(), *where])

    @abc.abstractmethod
    def create(self, job: MSJob, *, dry_run: bool = False) -> MSJob:
        """Submit a valid job and return it with its status; it goes on when this process ends.

        Args:
            job: The job.
            dry_run: Only judge it, and return it as it would be.

        Raises:
            AlreadyExistsError: A job of this name exists in its namespace.
            ValidationError: This backend cannot run it; the message names the field.
        """

    @abc.abstractmethod
    def get(self, name: str, namespace: str) -> MSJob:
        """Return a job with its status.

        Raises:
            NotFoundError: There is none.
        """

    def watch(
        self, name: str, namespace: str, *, timeout: float | None = None, interval: float = 0.1
    ) -> Iterator[MSJob]:
        """Yield a job as it is now, and again as it changes.

        Args:
            name: The job.
            namespace: Its namespace.
            timeout: Seconds after which it ends; None for never.
            interval: Pause between looks, in seconds, where a backend has to look.

        Raises:
            NotFoundError: There is no such job, or none any more.
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
        """Return the jobs of a namespace by name."""

    @abc.abstractmethod
    def update(self, name: str, namespace: str, patch: dict[str, Any]) -> MSJob:
        """Merge a patch into a job's metadata and spec (RFC 7396: null removes a field).

        Raises:
            NotFoundError: There is none.
            ValidationError: The result is invalid, or changes what cannot be changed.
        """

    @abc.abstractmethod
    def delete(self, name: str, namespace: str, *, grace_seconds: float | None = None) -> None:
        """End a job's processes, remove it and return when both are done.

        Args:
            name: The job.
            namespace: Its namespace.
            grace_seconds: Seconds between SIGTERM and SIGKILL; default the template's terminationGracePeriodSeconds.

        Raises:
            NotFoundError: There is none.
        """

    @abc.abstractmethod
    def list_pods(self, name: str, namespace: str) -> Sequence[Pod]:
        """Return a job's pods: scheduler, parameter servers, workers by rank."""

    @abc.abstractmethod
    def list_events(self, name: str, namespace: str) -> Sequence[Event]:
        """Return what happened to a job and its pods, oldest first."""

    @abc.abstractmethod
    def read_log(self, name: str, namespace: str, pod: str, *, last: int | None = None) -> str:
        """Return a pod's output; empty when it wrote nothing yet.

        Args:
            name: The job.
            namespace: Its namespace.
            pod: The pod.
            last: How many of its last lines; default all.
        """

    @abc.abstractmethod
    def follow_logs(
        self, name: str, namespace: str, choose: Callable[[Pod], bool], *, timeout: float | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield (pod name, line) of the chosen pods, from their first line until the job has ended or is deleted.

        Args:
            name: The job.
            namespace: Its namespace.
            choose: Tells of each pod whether to follow it.
            timeout: Seconds at most; None for no limit.

        Raises:
            NotFoundError: There is no such job.
            WaitTimeoutError: It took longer.
        """
