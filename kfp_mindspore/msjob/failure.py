"""Why a job has failed, in the words and last lines of the pod that failed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError
from kfp_mindspore.msjob.names import FAILED
from kfp_mindspore.msjob.status import DetailedStatus

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import JobBackend
    from kfp_mindspore.msjob.types import MSJob


class JobFailedError(ProcessFailedError, RuntimeError):
    """A job has failed that was to succeed; also a RuntimeError, as TrainingClient's users expect."""


def explain_failure(backend: JobBackend, job: MSJob, lines: int = 20) -> JobFailedError:
    """Return the error that tells why a job has failed.

    Args:
        backend: Where it ran.
        job: The job, with its status.
        lines: How many last lines of the pod that failed first it has at most.
    """
    failed = job.status.get_condition(FAILED) if job.status is not None else None
    kept = job.status.failure if isinstance(job.status, DetailedStatus) else None
    log: list[str] = []
    hint = ""
    try:
        culprit = kept.pod if kept is not None else _find_culprit(backend, job)
        if culprit:
            log = backend.read_log(job.name, job.namespace, culprit, last=lines).splitlines()
    except KfpMindSporeError:
        # Its pods went with their clean-up or the job's TTL, or may not be read: what the status keeps must do.
        pass
    if log:
        hint = f"The whole log: {backend.name_command('logs', job.name, namespace=job.namespace)}"
    elif kept is not None:
        log = kept.log[-lines:]
    return JobFailedError(
        f"job {job.name} failed: {failed.message if failed else 'it was deleted'}", log=log, hint=hint
    )


def _find_culprit(backend: JobBackend, job: MSJob) -> str:
    pods = [pod for pod in backend.list_pods(job.name, job.namespace) if pod.phase == "Failed"]
    culprits = [pod for pod in pods if pod.reason in ("Error", "StartError")] or pods
    return culprits[0].name if culprits else ""
