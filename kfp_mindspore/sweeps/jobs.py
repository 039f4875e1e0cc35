"""Trial jobs: the engine's interface to whatever runs trials, and an implementation by MSJobClient."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from kfp_mindspore import files
from kfp_mindspore.errors import AlreadyExistsError, NotFoundError
from kfp_mindspore.evaluation.curves import read_records
from kfp_mindspore.local.cores import list_cores
from kfp_mindspore.msjob.api.status import DetailedStatus, TrainingProgress
from kfp_mindspore.msjob.backends.local import LocalBackend
from kfp_mindspore.msjob.client import MSJobClient
from kfp_mindspore.settings import CORES_VARIABLE, METRICS_FILE, THREADS_VARIABLE

CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True)
class TrialJob:
    """A trial's job.

    Args:
        number: The trial's number.
        name: Job name.
        parameters: The trial's parameters.
        output: Output directory or URI; checkpoints to resume from are in the subfolder `checkpoints`.
        source: Another trial's output, from whose checkpoints a new job starts; empty for the trial's own.
        slot: Its place among the trials that run at the same time, from 0.
        slots: How many these are; on one machine each has its share of the cores.
        timeout: Seconds after which the job is terminated and fails; None for no limit.
    """

    number: int
    name: str
    parameters: Mapping[str, Any]
    output: str
    source: str = ""
    slot: int = 0
    slots: int = 1
    timeout: int | None = None


@dataclass(frozen=True)
class TrialJobState:
    """A job's state.

    Args:
        phase: `running` also before the start, `succeeded` or `failed`.
        records: Epochs as in metrics.jsonl: all, or the newest one where only that is known.
        reason: Why it failed.
    """

    phase: Literal["running", "succeeded", "failed"]
    records: Sequence[Mapping[str, Any]] = ()
    reason: str = ""


class TrialJobs(Protocol):
    """A place that runs trials; `poll_seconds` is the time between two reads for a job."""

    poll_seconds: float

    def list_names(self) -> Collection[str]:
        """Return all job names, including other jobs than trials."""

    def start(self, job: TrialJob) -> None:
        """Start a job, which resumes from the checkpoints in the output; one that exists is kept."""

    def read(self, job: TrialJob) -> TrialJobState:
        """Return a job's state.

        Raises:
            NotFoundError: It does not exist.
        """

    def end(self, name: str) -> None:
        """Delete a job, whose processes get SIGTERM, and wait for their end; a missing one is no error."""

    def abandon(self, names: Sequence[str], error: BaseException) -> None:
        """End the running jobs when the engine ends before them, by an error or an interruption."""

    def save(self) -> None:
        """Store the study, which has changed, where the next engine reads it."""


class ClientJobs:
    """Trials by `MSJobClient.train`.

    Args:
        client: For the jobs.
        template: `MSJobClient.train` arguments that all trials share.

    Attributes:
        is_local: Whether the jobs run on this machine; only their checkpoints are copied.
    """

    def __init__(self, client: MSJobClient, template: Mapping[str, Any]) -> None:
        self._client = client
        self._template = {key: value for key, value in template.items() if key != "trainer_parameters"}
        self._shared = template.get("trainer_parameters") or {}
        self.is_local = isinstance(client.backend, LocalBackend)
        # The pruner sees an epoch of a short trial before the next ones.
        self.poll_seconds = 0.1 if self.is_local else 0.5

    def list_names(self) -> Collection[str]:
        """Return the jobs' names."""
        return {job.name for job in self._client.list_jobs()}

    def start(self, job: TrialJob) -> None:
        """Start a job."""
        if job.name in self.list_names():
            return
        # A job that was interrupted goes on from its own.
        if job.source and not Path(job.output, CHECKPOINTS_FOLDER).exists():
            files.copy_directory(Path(job.source, CHECKPOINTS_FOLDER), Path(job.output, CHECKPOINTS_FOLDER))
        parameters = {**self._shared, **job.parameters}
        template = dict(self._template)
        if self.is_local and job.slots > 1 and not isinstance(given := template.get("env_vars") or {}, Sequence):
            template["env_vars"] = {**share_cores(job, template.get("num_workers", 1)), **given}
        if job.timeout is not None:
            own = template.get("active_deadline_seconds")
            template["active_deadline_seconds"] = min(job.timeout, own or job.timeout)
        with contextlib.suppress(AlreadyExistsError):
            self._client.train(job.name, **template, trainer_parameters=parameters, output_dir=job.output)

    def read(self, job: TrialJob) -> TrialJobState:
        """Return a job's state; a cluster's job has the newest epoch only, from the progress in the status.

        The operator writes the last epoch together with the job's end.
        """
        found = self._client.get_job(job.name)
        # Read before the epochs: the last one of an ended job is written.
        is_failed, is_succeeded = self._client.is_job_failed(job=found), self._client.is_job_succeeded(job=found)
        reason = ""
        if is_failed:
            error = self._client.explain_failure(found, lines=1)
            reason = ": ".join([error.message, *error.log])
        records: Sequence[Mapping[str, Any]] = ()
        if self.is_local:
            file = Path(job.output, METRICS_FILE)
            records = read_records(file) if file.is_file() else ()
        elif isinstance(found.status, DetailedStatus):
            records = to_records(found.status.progress)
        return TrialJobState("failed" if is_failed else "succeeded" if is_succeeded else "running", records, reason)

    def end(self, name: str) -> None:
        """Delete a job."""
        with contextlib.suppress(NotFoundError):
            self._client.delete_job(name)

    def abandon(self, names: Sequence[str], error: BaseException) -> None:
        """Delete the jobs."""
        for name in names:
            self.end(name)

    def save(self) -> None:
        """Keep the study where it is."""


def share_cores(job: TrialJob, workers: int) -> dict[str, str]:
    """Return the variables by which a trial's processes use its share of this machine's cores.

    OpenMP has no more threads than that, and `fit` binds a trial with one worker to these cores; {} if the user has
    set the number of threads.
    """
    if THREADS_VARIABLE in os.environ:
        return {}
    cores = list_cores()
    share = max(1, len(cores) // job.slots)
    own = cores[job.slot * share : (job.slot + 1) * share]
    variables = {THREADS_VARIABLE: str(max(1, share // workers))}
    if own and workers == 1:
        variables[CORES_VARIABLE] = ",".join(map(str, own))
    return variables


def to_records(progress: TrainingProgress | None) -> list[dict[str, Any]]:
    """Return a progress report's last complete epoch as a metrics.jsonl record; none before the first one's end."""
    if progress is None or not progress.steps or not progress.epochs or progress.step is None:
        return []
    epoch, rest = divmod(progress.step * progress.epochs, progress.steps)
    values: dict[str, float] = {}
    for metric in progress.metrics:
        with contextlib.suppress(ValueError):
            values[metric.name] = float(metric.value)
    loss = values.pop("loss", None)
    record: dict[str, Any] = {"epoch": epoch, "validation": values}
    # Within an epoch, it is the mean of that epoch's first steps.
    if loss is not None and not rest:
        record["loss"] = loss
    return [record] if epoch else []
