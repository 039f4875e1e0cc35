"""A failed job's error, with the last lines from the pod that failed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError
from kfp_mindspore.msjob.api.names import FAILED
from kfp_mindspore.msjob.api.status import DetailedStatus

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import JobBackend
    from kfp_mindspore.msjob.types import MSJob


class JobFailedError(ProcessFailedError, RuntimeError):
    """A job has failed unexpectedly; also a RuntimeError, as in TrainingClient."""


def explain_failure(backend: JobBackend, job: MSJob, lines: int = 20) -> JobFailedError:
    """Return a failed job's error.

    Args:
        backend: The job's backend.
        job: The job, with its status.
        lines: Maximum number of last lines from the pod that failed first.
    """
    failed = job.status.get_condition(FAILED) if job.status is not None else None
    recorded = job.status.failure if isinstance(job.status, DetailedStatus) else None
    log: list[str] = []
    hint = ""
    try:
        pod_name = recorded.pod if recorded is not None else _get_first_failed(backend, job)
        if pod_name:
            log = backend.read_log(job.name, job.namespace, pod_name, last=lines).splitlines()
    except KfpMindSporeError:
        # The pods were cleaned up, or reading them is forbidden: use the lines recorded in the status.
        pass
    if log:
        hint = f"The whole log: {backend.name_command('logs', job.name, namespace=job.namespace)}"
    elif recorded is not None:
        log = recorded.log[-lines:]
    return JobFailedError(
        f"job {job.name} failed: {failed.message if failed else 'it was deleted'}", log=log, hint=hint
    )


def _get_first_failed(backend: JobBackend, job: MSJob) -> str:
    pods = [pod for pod in backend.list_pods(job.name, job.namespace) if pod.phase == "Failed"]
    failed_pods = [pod for pod in pods if pod.reason in ("Error", "StartError")] or pods
    return failed_pods[0].name if failed_pods else ""
