"""Limit of the time that a job waits for the start of its pods."""

from __future__ import annotations

import contextlib
import re
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.msjob.missing_operator import NO_OPERATOR, explain_missing_operator
from kfp_mindspore.msjob.status import DetailedStatus

if TYPE_CHECKING:
    from kfp_mindspore.msjob.client import MSJobClient

# The operator's prefix of a pod that fits on no node of the cluster, even an empty one.
NO_NODE = "Unschedulable: no node fits"
# The scheduler's reason for a claim without a volume, such as one of a missing storage class.
_NO_VOLUME = "unbound immediate PersistentVolumeClaims"
# Four attempts of the kubelet to pull an image.
_SECONDS = 60.0
# An autoscaler adds a node within minutes; an operator is back after its upgrade.
_LONG_SECONDS = 600.0
_PERMANENT = re.compile(
    r": (ImagePullBackOff|CreateContainerConfigError|CreateContainerError): "
    r"| forbidden: (?!exceeded quota)"
    r"|exceeded quota: .* used: ([^=,\s]+=0,)+ limited: "
    r"|exists and does not belong to this job"
)


def get_start_limit(waiting: str) -> float | None:
    """Return the seconds after which a reason is permanent; None for one that ends when others release resources.

    Args:
        waiting: Reason why the pods of a job do not start: the status' `waiting`, or the sentence of
            `explain_missing_operator`.
    """
    if NO_NODE in waiting or _NO_VOLUME in waiting or NO_OPERATOR in waiting:
        return _LONG_SECONDS
    return _SECONDS if _PERMANENT.search(waiting) else None


class StartLimit:
    """Deletion of a job whose pods cannot start, within a block that waits for the job.

    Args:
        client: The client of the job's backend.
        name: Name of the job.
        namespace: Its namespace.
        seconds: Limit for each reason; None for those of `get_start_limit`.

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

    def start(self, waiting: str) -> None:
        """Start the limit of a new reason."""
        limit = self._get_limit(waiting)
        if limit is not None:
            timer = threading.Timer(limit, self._check, [limit])
            timer.daemon = True
            timer.start()
            self._timers.append(timer)

    def _get_limit(self, waiting: str) -> float | None:
        return get_start_limit(waiting) if self._seconds is None else self._seconds

    def _check(self, limit: float) -> None:
        # Connection errors are reported by the waiting call.
        with contextlib.suppress(KfpMindSporeError):
            job = self._client.get_job(self._name, self._namespace)
            waiting = job.status.waiting if isinstance(job.status, DetailedStatus) else None
            waiting = waiting or explain_missing_operator(job, self._client.backend)
            if waiting and self._get_limit(waiting) is not None:
                self.error = f"job {self._name} did not start within {limit:g} s and was deleted: {waiting}"
                self._client.backend.cancel(job)
