"""Human-readable output for `kfp-mindspore job`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore.cli.shared.output import print_json, print_table
from kfp_mindspore.errors import NotFoundError, ProcessFailedError, WaitTimeoutError
from kfp_mindspore.msjob.progress import describe_progress

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob, MSJobClient
    from kfp_mindspore.msjob.api.waiting import Waiting
    from kfp_mindspore.msjob.backends.base import JobBackend, Pod


def get_state(job: MSJob) -> str:
    """Return a job's state in one word."""
    return job.status.state if job.status is not None else "Pending"


def print_jobs(jobs: Sequence[MSJob]) -> None:
    """Print a job table."""
    rows = [
        {
            "name": job.name,
            "state": get_state(job),
            "workers": getattr(job.status, "workers", None) or job.workers,
            "restarts": getattr(job.status, "restarts", None),
            "progress": _describe_percentage(job),
            "waits": getattr(job.status, "waiting_reason", None),
            "created": job.metadata.get("creationTimestamp"),
        }
        for job in jobs
    ]
    print_table(rows, _drop_empty(rows, ["name", "state", "workers", "restarts", "progress", "waits", "created"]))


def print_job(job: MSJob, pods: Sequence[Pod], backend: JobBackend) -> None:
    """Print a job: state, conditions, waiting reason, first failure and pods."""
    from kfp_mindspore.msjob.decisions.elastic import get_restart_limit

    click.echo(f"{job.name}: {get_state(job)}")
    restarts = getattr(job.status, "restarts", None)
    if restarts is None:
        restarts = max((pod.restarts for pod in pods), default=0)
    if restarts:
        click.echo(f"restarts: {restarts} of {get_restart_limit(job)}")
    if (progress := getattr(job.status, "progress", None)) is not None:
        click.echo(f"progress: {describe_progress(progress)}")
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


def print_output_directory(job: MSJob) -> None:
    """Print the directory that a job's workers write to, where the job names one."""
    from kfp_mindspore.settings import OUTPUT_VARIABLE

    variables = {item["name"]: item.get("value") for item in job.ms_replica_specs["Worker"].container.get("env") or []}
    if path := variables.get(OUTPUT_VARIABLE):
        click.echo(f"output: {path}")


@contextlib.contextmanager
def print_failed_job(client: MSJobClient, name: str, namespace: str, as_json: bool) -> Iterator[None]:
    """Print the job as JSON, with `as_json`, when the wait in this block fails; the error is raised again."""
    try:
        yield
    except (ProcessFailedError, WaitTimeoutError):
        if as_json:
            # A job that was deleted meanwhile has no JSON.
            with contextlib.suppress(NotFoundError):
                print_json(client.get_job(name, namespace).to_dict())
        raise


def print_warning(text: str) -> None:
    """Print a warning to standard error."""
    click.echo(f"Warning: {text}", err=True)


def print_waiting(waiting: Waiting) -> None:
    """Print why a job's pods do not run, to standard error."""
    click.echo(f"waits: {waiting.message}", err=True)


def print_detached(backend: JobBackend, name: str, namespace: str) -> None:
    """Print to standard error how to follow and to delete a job whose --wait was interrupted."""
    follow = backend.name_command("logs", "-f", name, namespace=namespace)
    click.echo(f"\njob {name} continues; follow it with: {follow}", err=True)
    click.echo(f"Delete it with: {backend.name_command('delete', name, namespace=namespace)}", err=True)


class WaitingReport:
    """A callback that prints why a job's pods do not run, whenever that changes."""

    def __init__(self) -> None:
        self._reported: Waiting | None = None

    def __call__(self, job: MSJob) -> None:
        """Print the waiting reason, if it is a new one."""
        from kfp_mindspore.msjob.api.status import read_waiting

        waiting = read_waiting(job.status)
        if waiting is not None and waiting != self._reported:
            print_waiting(waiting)
        self._reported = waiting


def _describe_percentage(job: MSJob) -> str | None:
    progress = getattr(job.status, "progress", None)
    return None if progress is None or progress.percentage is None else f"{progress.percentage} %"


def _describe_pod(pod: Pod) -> dict[str, Any]:
    return {
        "pod": pod.name,
        "phase": pod.phase,
        "pid": pod.pid,
        "node": pod.node,
        "exit": pod.exit_code,
        "reason": pod.reason,
        # A message with several lines is a log excerpt.
        "message": pod.message if pod.message and "\n" not in pod.message and pod.exit_code is None else None,
    }


def _drop_empty(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return the columns with a value in any row; without rows all."""
    return [column for column in columns if not rows or any(row[column] is not None for row in rows)]
