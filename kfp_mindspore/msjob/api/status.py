"""A job's status and conditions, with kubeflow-training's fields and meanings."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.msjob.api.manifest import deserialize, now, parse_time, serialize
from kfp_mindspore.msjob.api.names import CONDITIONS, FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from kfp_mindspore.msjob.api.waiting import WAITING_REASONS, Waiting


@dataclass
class JobCondition:
    """One condition, as `KubeflowOrgV1JobCondition`.

    Attributes:
        type: `Created`, `Running`, `Restarting`, `Suspended`, `Succeeded` or `Failed`.
        status: `True`, `False` or `Unknown`.
        reason: One machine-readable word, such as `BackoffLimitExceeded`.
        message: A sentence.
        last_update_time: Last update time.
        last_transition_time: Time of the status's last change.
    """

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_update_time: datetime.datetime | None = None
    last_transition_time: datetime.datetime | None = None

    def __post_init__(self) -> None:
        self.last_update_time = parse_time(self.last_update_time)
        self.last_transition_time = parse_time(self.last_transition_time)


@dataclass
class ReplicaStatus:
    """Replica counts for one type, as `KubeflowOrgV1ReplicaStatus`.

    Attributes:
        active: Number of running replicas.
        succeeded: Number of succeeded replicas.
        failed: Number of failed replicas.
        selector: Their pods' label selector, as text.
        label_selector: Their pods' label selector.
    """

    active: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    selector: str | None = None
    label_selector: dict[str, Any] | None = None


@dataclass
class JobStatus:
    """A job's observed state, as `KubeflowOrgV1JobStatus`.

    A job *is* in a condition when that condition type has the status `True`; their order has no meaning.

    Attributes:
        conditions: Conditions, one per type.
        replica_statuses: Replica type to its replica counts.
        start_time: When its first process started.
        completion_time: When it succeeded or finally failed.
        last_reconcile_time: Last reconciliation time.
    """

    conditions: list[JobCondition] = field(default_factory=list)
    replica_statuses: dict[str, ReplicaStatus] | None = None
    start_time: datetime.datetime | None = None
    completion_time: datetime.datetime | None = None
    last_reconcile_time: datetime.datetime | None = None

    def __post_init__(self) -> None:
        self.conditions = [_parse(JobCondition, item) for item in self.conditions or []]
        if self.replica_statuses is not None:
            self.replica_statuses = {name: _parse(ReplicaStatus, item) for name, item in self.replica_statuses.items()}
        self.start_time = parse_time(self.start_time)
        self.completion_time = parse_time(self.completion_time)
        self.last_reconcile_time = parse_time(self.last_reconcile_time)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobStatus:
        """Read a manifest; unknown fields are dropped."""
        return cls(**deserialize(cls, document))

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest."""
        document: dict[str, Any] = serialize(self)
        return document

    def has(self, condition: str) -> bool:
        """Return whether the job is in a condition."""
        return any(item.type == condition and item.status == "True" for item in self.conditions)

    def get_condition(self, condition: str) -> JobCondition | None:
        """Return the condition with a type, whatever its status, or None."""
        return next((item for item in self.conditions if item.type == condition), None)

    @property
    def is_finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.has(SUCCEEDED) or self.has(FAILED)

    @property
    def state(self) -> str:
        """The condition of highest precedence: `Failed`, `Succeeded`, `Suspended`, `Restarting`, `Running`."""
        order = (FAILED, SUCCEEDED, SUSPENDED, RESTARTING, RUNNING)
        return next((name for name in order if self.has(name)), "Created" if self.conditions else "Pending")

    def set_condition(
        self,
        condition: str,
        reason: str,
        message: str,
        *,
        status: bool = True,
        time: datetime.datetime | None = None,
    ) -> None:
        """Set one condition and clear those that it excludes, as kubeflow-training's controller does.

        Args:
            condition: The condition's type.
            reason: One machine-readable word.
            message: A sentence.
            status: Condition status.
            time: Transition time; default now.
        """
        time = time or now()
        if condition not in CONDITIONS:
            raise ValueError(f"condition must be one of {', '.join(CONDITIONS)}, got {condition!r}")
        self._write(condition, "True" if status else "False", reason, message, time)
        if not status:
            return
        excluded = {
            RUNNING: (RESTARTING, SUSPENDED),
            RESTARTING: (RUNNING,),
            SUSPENDED: (RUNNING, RESTARTING),
            SUCCEEDED: (RUNNING, RESTARTING, SUSPENDED),
            FAILED: (RUNNING, RESTARTING, SUSPENDED),
        }
        for other in excluded.get(condition, ()):
            if self.has(other):
                self._write(other, "False", reason, message, time)

    def _write(self, condition: str, status: str, reason: str, message: str, time: datetime.datetime) -> None:
        if (found := self.get_condition(condition)) is None:
            self.conditions.append(JobCondition(condition, status, reason, message, time, time))
            return
        if found.status != status:
            found.last_transition_time = time
        found.status, found.reason, found.message, found.last_update_time = status, reason, message, time


@dataclass
class Failure:
    """The first failure in the newest failed attempt.

    Attributes:
        pod: The pod that failed first.
        exit_code: As a shell reports it.
        reason: Reason, such as `OOMKilled`, `Evicted` or `Error`.
        message: A sentence.
        log: The pod's last lines, oldest first.
        attempt: Attempt number, from 0.
    """

    pod: str
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    log: list[str] = field(default_factory=list)
    attempt: int | None = None


@dataclass
class ProgressMetric:
    """One metric, as in a TrainJob's status.

    Attributes:
        name: Metric name, such as `loss`.
        value: Its value as text, since Kubernetes' definitions have no floating-point numbers.
    """

    name: str
    value: str


@dataclass
class TrainingProgress:
    """Training progress, as reported by worker 0; all fields but metrics are None when they are unknown.

    Attributes:
        percentage: Steps done in percent, 0 to 100.
        epoch: The present epoch, from 1.
        epochs: Epoch count.
        step: Optimizer steps done.
        steps: Optimizer steps over all epochs.
        estimated_remaining_seconds: Estimated time to the end in seconds, at the present attempt's rate.
        metrics: The newest metrics.
        device: Device type that worker 0 uses, such as CPU.
    """

    percentage: int | None = field(default=None, metadata={"minimum": 0, "maximum": 100})
    epoch: int | None = field(default=None, metadata={"format": "int64"})
    epochs: int | None = field(default=None, metadata={"format": "int64"})
    step: int | None = field(default=None, metadata={"format": "int64"})
    steps: int | None = field(default=None, metadata={"format": "int64"})
    estimated_remaining_seconds: int | None = field(default=None, metadata={"minimum": 0, "format": "int64"})
    metrics: list[ProgressMetric] = field(default_factory=list)
    device: str | None = None

    def __post_init__(self) -> None:
        self.metrics = [_parse(ProgressMetric, item) for item in self.metrics or []]


@dataclass
class StatusSummary:
    """The fields that backends add to `JobStatus`.

    Attributes:
        workers: Workers that run or have succeeded, and the total, such as `1/2`.
        target_workers: The present attempt's worker count, while an elastic job runs with fewer than requested.
        restarts: Number of gang restarts after failures; bounded by backoffLimit, or maxRestarts for an elastic job.
        attempt: The present gang's number, from 0: restarts, disruptions, suspensions and scalings raise it.
        failure: The first failure in the newest failed attempt.
        progress: Training progress; absent until worker 0 has reported it.
        warm_spares: Warm spares that run, and the total, such as `1/2`, and what keeps others from running.
        waiting: Reason why the present attempt does not run, in a sentence; absent when nothing is wrong.
        waiting_reason: The reason in one word.
        observed_generation: Spec generation that the status describes.
    """

    workers: str | None = None
    target_workers: int | None = None
    restarts: int | None = None
    attempt: int | None = None
    failure: Failure | None = None
    progress: TrainingProgress | None = None
    warm_spares: str | None = None
    waiting: str | None = None
    waiting_reason: str | None = field(default=None, metadata={"enum": list(WAITING_REASONS)})
    observed_generation: int | None = field(default=None, metadata={"format": "int64"})


@dataclass
class DetailedStatus(JobStatus, StatusSummary):
    """A job status on a cluster: `JobStatus`, `StatusSummary` and the state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failure is not None:
            self.failure = _parse(Failure, self.failure)
        if self.progress is not None:
            self.progress = _parse(TrainingProgress, self.progress)

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest, with the state."""
        return {"state": self.state, **super().to_dict()}


def read_waiting(status: JobStatus | None) -> Waiting | None:
    """Return why a job's pods do not run; None when nothing is wrong."""
    if not isinstance(status, DetailedStatus) or not status.waiting:
        return None
    return Waiting(status.waiting_reason or "", status.waiting)


def _parse(kind: type[Any], value: Any) -> Any:
    return value if isinstance(value, kind) else kind(**deserialize(kind, serialize(value)))
