"""Run a job in the foreground: submit it, print its log, wait for its end, delete it on interruption."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.local.interrupts import Interrupts
from kfp_mindspore.msjob.api.names import FAILED, WORKER
from kfp_mindspore.msjob.api.status import JobStatus, read_waiting
from kfp_mindspore.msjob.api.waiting import Waiting
from kfp_mindspore.msjob.backends.base import CANCEL_GRACE_SECONDS, Pod
from kfp_mindspore.msjob.client import MSJobClient
from kfp_mindspore.msjob.failure import JobFailedError
from kfp_mindspore.msjob.types import MSJob

_LAST_LINES = 20


def run_job(
    client: MSJobClient,
    job: MSJob,
    *,
    timeout: float | None = None,
    on_log: Callable[[str], object] | None = print,
    on_waiting: Callable[[Waiting], object] | None = None,
) -> JobStatus:
    """Submit a job, report worker 0's log lines, and wait for its end.

    When this process is interrupted (SIGTERM, Ctrl-C, any exception), the job is deleted. For a `kill -9`, hold a
    `kfp_mindspore.local.lease.Lease`.

    Args:
        client: The client that submits it.
        job: The job.
        timeout: Seconds; None for no limit. The job is deleted on timeout.
        on_log: Called with each line; None for no output.
        on_waiting: Called with the reason why the job's pods do not run, when it changes.

    Returns:
        The job status, which has succeeded. The job and its logs are kept.

    Raises:
        JobFailedError: It failed; the message ends with the last lines.
        WaitTimeoutError: The timeout has passed.
    """
    with Interrupts() as interrupts:
        with interrupts.held():
            client.create_job(job)
        namespace = job.metadata.get("namespace") or client.namespace
        try:
            interrupts.raise_pending()
            return follow_job(client, job.name, namespace, timeout=timeout, on_log=on_log, on_waiting=on_waiting)
        except JobFailedError:
            raise
        except BaseException:
            with contextlib.suppress(NotFoundError):
                client.backend.delete(job.name, namespace, grace_seconds=CANCEL_GRACE_SECONDS)
            raise


def follow_job(
    client: MSJobClient,
    name: str,
    namespace: str,
    *,
    timeout: float | None = None,
    on_log: Callable[[str], object] | None = print,
    on_waiting: Callable[[Waiting], object] | None = None,
) -> JobStatus:
    """Report worker 0's log lines for a submitted job, and wait for its end.

    Args:
        client: The job backend's client.
        name: Job name.
        namespace: Job namespace.
        timeout: Seconds; None for no limit.
        on_log: Called with each line; None for no output.
        on_waiting: Called with the reason why the job's pods do not run, when it changes.

    Returns:
        The job status, which has succeeded.

    Raises:
        JobFailedError: It failed, or was deleted; the message ends with the last lines.
        WaitTimeoutError: The timeout has passed.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    reported: Waiting | None = None

    def pod_filter(pod: Pod) -> bool:
        return pod.replica_type == WORKER and pod.index == 0

    def report_waiting(job: MSJob) -> None:
        nonlocal reported
        waiting = read_waiting(job.status)
        if waiting is not None and waiting != reported and on_waiting is not None:
            on_waiting(waiting)
        reported = waiting

    try:
        for _, line in client.backend.follow_logs(
            name, namespace, pod_filter, timeout=timeout, on_change=report_waiting
        ):
            last.append(line)
            if on_log is not None:
                on_log(line)
        finished = client.get_job(name, namespace)
    except NotFoundError:
        raise JobFailedError(f"job {name} was deleted while it ran", log=tuple(last)) from None
    assert finished.status is not None
    if finished.status.has(FAILED):
        raise client.explain_failure(finished, _LAST_LINES)
    return finished.status
