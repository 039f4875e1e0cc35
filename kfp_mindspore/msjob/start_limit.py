"""Time limit for a job to wait until its pods start."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.msjob.api.status import read_waiting
from kfp_mindspore.msjob.api.waiting import NO_OPERATOR, QUEUED, Waiting, get_start_limit
from kfp_mindspore.msjob.missing_operator import explain_missing_operator

if TYPE_CHECKING:
    from kfp_mindspore.msjob.client import MSJobClient


class StartLimit:
    """Deletes a job whose pods cannot start, within a block that waits for the job.

    Args:
        client: The job backend's client.
        name: Job name.
        namespace: Job namespace.
        seconds: Limit for each reason but QUEUED; None for `get_start_limit`'s.

    Attributes:
        error: Why the job was deleted, in a sentence; empty if it was not.
    """

    def __init__(self, client: MSJobClient, name: str, namespace: str, seconds: float | None = None) -> None:
        self.error = ""
        self._client = client
        self._name = name
        self._namespace = namespace
        self._seconds = seconds
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> StartLimit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in self._timers:
            timer.cancel()

    def start(self, waiting: Waiting) -> None:
        """Start the limit for a new reason."""
        limit = self._get_limit(waiting.reason)
        if limit is not None:
            timer = threading.Timer(limit, self._check, [limit])
            timer.daemon = True
            timer.start()
            self._timers.append(timer)

    def _get_limit(self, reason: str) -> float | None:
        # In a queue a job waits for others, however long they run.
        if reason == QUEUED:
            return None
        return get_start_limit(reason) if self._seconds is None else self._seconds

    def _check(self, limit: float) -> None:
        # Connection errors are reported by the waiting call.
        with contextlib.suppress(KfpMindSporeError):
            job = self._client.get_job(self._name, self._namespace)
            waiting = read_waiting(job.status)
            if waiting is None and (text := explain_missing_operator(job, self._client.backend)):
                waiting = Waiting(NO_OPERATOR, text)
            if waiting is not None and self._get_limit(waiting.reason) is not None:
                self.error = f"job {self._name} did not start within {limit:g} s and was deleted: {waiting.message}"
                self._client.backend.cancel(job)
