"""Human-readable output of `kfp-mindspore job`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore.cli.output import print_table

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob
    from kfp_mindspore.msjob.backends.base import JobBackend, Pod
    from kfp_mindspore.msjob.status import Progress


def get_state(job: MSJob) -> str:
    """Return a job's state in one word."""
    return job.status.state if job.status is not None else "Pending"


def print_jobs(jobs: Sequence[MSJob]) -> None:
    """Print a table of jobs."""
    rows = [
        {
            "name": job.name,
            "state": get_state(job),
            "workers": getattr(job.status, "workers", None) or job.workers,
            "restarts": getattr(job.status, "restarts", None),
            "progress": _describe_percentage(job),
            "created": job.metadata.get("creationTimestamp"),
        }
        for job in jobs
    ]
    print_table(rows, _drop_empty(rows, ["name", "state", "workers", "restarts", "progress", "created"]))


def print_job(job: MSJob, pods: Sequence[Pod], backend: JobBackend) -> None:
    """Print a job: state, conditions, reason of waiting, first failure and pods."""
    click.echo(f"{job.name}: {get_state(job)}")
    restarts = getattr(job.status, "restarts", None)
    if restarts is None:
        restarts = max((pod.restarts for pod in pods), default=0)
    if restarts:
        click.echo(f"restarts: {restarts} of {job.effective_run_policy.backoff_limit}")
    if (progress := getattr(job.status, "progress", None)) is not None:
        click.echo(f"progress: {_describe_progress(progress)}")
    if (waiting := getattr(job.status, "waiting", None)) is not None:
        click.echo(f"waits: {waiting}")
    if (failure := getattr(job.status, "failure", None)) is not None:
        code = f" with exit code {failure.exit_code}" if failure.exit_code is not None else ""
        reason = f" ({failure.reason})" if failure.reason and failure.reason != "Error" else ""
        attempt = f" in attempt {failure.attempt}" if failure.attempt else ""
        click.echo(f"failed first: {failure.pod}{code}{reason}{attempt}")
        for line in failure.log:
            click.echo(f"  | {line}")
    click.echo()
    conditions = job.status.conditions if job.status is not None else []
    print_table([vars(condition) for condition in conditions], ["type", "status", "reason", "message"])
    click.echo()
    rows = [_describe_pod(pod) for pod in pods]
    print_table(rows, _drop_empty(rows, ["pod", "phase", "pid", "node", "exit", "reason", "message"]))
    warn_of_missing_operator(job, backend)


def warn_of_missing_operator(job: MSJob, backend: JobBackend) -> None:
    """Print a warning when no operator has reconciled a job within some seconds."""
    from kfp_mindspore.msjob.missing_operator import explain_missing_operator

    if text := explain_missing_operator(job, backend):
        print_warning(text)


def print_warning(text: str) -> None:
    """Print a warning to standard error."""
    click.echo(f"Warning: {text}", err=True)


def print_waiting(reason: str) -> None:
    """Print why a job's pods do not run, to standard error."""
    click.echo(f"waits: {reason}", err=True)


def print_detached(backend: JobBackend, name: str, namespace: str) -> None:
    """Print to standard error how to follow and to delete a job whose --wait was interrupted."""
    follow = backend.name_command("logs", "-f", name, namespace=namespace)
    click.echo(f"\njob {name} continues; follow it with: {follow}", err=True)
    click.echo(f"Delete it with: {backend.name_command('delete', name, namespace=namespace)}", err=True)


class WaitingReport:
    """A callback that prints why a job's pods do not run, whenever that changes."""

    def __init__(self) -> None:
        self._reported = ""

    def __call__(self, job: MSJob) -> None:
        """Print the reason of waiting, if it is a new one."""
        waiting = getattr(job.status, "waiting", None) or ""
        if waiting not in ("", self._reported):
            print_waiting(waiting)
        self._reported = waiting


def _describe_percentage(job: MSJob) -> str | None:
    progress = getattr(job.status, "progress", None)
    return None if progress is None or progress.percentage is None else f"{progress.percentage} %"


def _describe_progress(progress: Progress) -> str:
    """Return a line such as `45 %, epoch 5/10, step 450/1000, 2:00:00 left, loss 0.31`."""
    parts = [] if progress.percentage is None else [f"{progress.percentage} %"]
    for name, done, total in (("epoch", progress.epoch, progress.epochs), ("step", progress.step, progress.steps)):
        if done is not None:
            parts.append(f"{name} {done}" + (f"/{total}" if total is not None else ""))
    if seconds := progress.estimated_remaining_seconds:
        parts.append(f"about {datetime.timedelta(seconds=seconds)} left")
    return ", ".join([*parts, *(f"{metric.name} {metric.value}" for metric in progress.metrics)])


def _describe_pod(pod: Pod) -> dict[str, Any]:
    return {
        "pod": pod.name,
        "phase": pod.phase,
        "pid": pod.pid,
        "node": pod.node,
        "exit": pod.exit_code,
        "reason": pod.reason,
        # A message of several lines is an excerpt of the log.
        "message": pod.message if pod.message and "\n" not in pod.message and pod.exit_code is None else None,
    }


def _drop_empty(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return the columns with a value in any row; without rows all."""
    return [column for column in columns if not rows or any(row[column] is not None for row in rows)]
