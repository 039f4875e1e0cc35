"""Detection of jobs that no operator reconciles."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.msjob.api.manifest import now, parse_time

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import JobBackend
    from kfp_mindspore.msjob.client import MSJobClient
    from kfp_mindspore.msjob.types import MSJob

# A running operator reconciles a new job within a second.
_SILENCE_SECONDS = 10.0


def explain_missing_operator(job: MSJob, backend: JobBackend) -> str:
    """Return a sentence when no operator has reconciled a job within some seconds, else an empty text.

    Args:
        job: The job, with its status.
        backend: The job's backend.
    """
    created = parse_time(job.metadata.get("creationTimestamp"))
    if (job.status is not None and job.status.conditions) or created is None:
        return ""
    age = (now() - created).total_seconds()
    # An operator with a backlog creates pods before it writes the first status.
    if age < _SILENCE_SECONDS or backend.list_pods(job.name, job.namespace):
        return ""
    manager = job.run_policy.managed_by if job.run_policy is not None else None
    if manager:
        return f"job {job.name} is managed by {manager}, which has written no status for {age:.0f} s."
    flags = [flag for flag in backend.list_flags() if flag not in ("--backend", "kubernetes")]
    return f"no operator has reconciled job {job.name} for {age:.0f} s. Install one with: " + " ".join(
        ["kfp-mindspore operator install --image REGISTRY/NAME@sha256:…", *flags]
    )


@contextlib.contextmanager
def report_missing_operator(
    client: MSJobClient, name: str, namespace: str, on_missing: Callable[[str], object]
) -> Iterator[None]:
    """Call `on_missing` with a sentence if no operator reconciles a job during a block that waits for it.

    Args:
        client: The job backend's client.
        name: Job name.
        namespace: Job namespace.
        on_missing: Called at most once, in another thread.
    """

    def check() -> None:
        # Connection errors are reported by the waiting call.
        with contextlib.suppress(KfpMindSporeError):
            if text := explain_missing_operator(client.get_job(name, namespace), client.backend):
                on_missing(text)

    timer = threading.Timer(_SILENCE_SECONDS + 1, check)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
