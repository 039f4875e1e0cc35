"""TrainingClient's methods on a job's conditions."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from kfp_mindspore.errors import ValidationError, WaitTimeoutError
from kfp_mindspore.msjob import names
from kfp_mindspore.msjob.arguments import check_job_kind
from kfp_mindspore.msjob.backends.base import JobBackend
from kfp_mindspore.msjob.failure import JobFailedError, explain_failure
from kfp_mindspore.msjob.status import JobCondition
from kfp_mindspore.msjob.types import MSJob


class JobConditions(abc.ABC):
    """Job conditions, given by name or as objects.

    Attributes:
        backend: Where jobs run.
    """

    backend: JobBackend

    @property
    @abc.abstractmethod
    def namespace(self) -> str:
        """Default namespace for calls."""

    @abc.abstractmethod
    def get_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None, timeout: float | None = None
    ) -> MSJob:
        """Return a job with its status."""

    def get_job_conditions(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> list[JobCondition]:
        """Return a job's conditions, given by name or as an object.

        A job is in a condition when that condition type has the status `True`; their order has no meaning.
        """
        check_job_kind(job_kind)
        if job is None:
            if name is None:
                raise ValidationError(["get_job_conditions: must have name or job"])
            job = self.get_job(name, namespace)
        elif not isinstance(job, MSJob):
            raise ValidationError([f"job: must be an MSJob, got {type(job).__name__}"])
        return list(job.status.conditions) if job.status is not None else []

    def is_job_created(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job is Created."""
        return self._is_job(names.CREATED, name, namespace, job_kind, job)

    def is_job_running(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job is Running."""
        return self._is_job(names.RUNNING, name, namespace, job_kind, job)

    def is_job_restarting(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job is Restarting."""
        return self._is_job(names.RESTARTING, name, namespace, job_kind, job)

    def is_job_succeeded(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job has Succeeded."""
        return self._is_job(names.SUCCEEDED, name, namespace, job_kind, job)

    def is_job_failed(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job has Failed."""
        return self._is_job(names.FAILED, name, namespace, job_kind, job)

    def wait_for_job_conditions(
        self,
        name: str,
        namespace: str | None = None,
        job_kind: str | None = None,
        expected_conditions: set[str] | frozenset[str] = frozenset({names.SUCCEEDED}),
        wait_timeout: float = 600,
        polling_interval: float = 0.1,
        callback: Callable[[MSJob], Any] | None = None,
        timeout: float | None = None,
    ) -> MSJob:
        """Wait until a job is in any expected condition.

        Args:
            name: The job.
            namespace: Its namespace.
            job_kind: `MSJob`.
            expected_conditions: Condition types.
            wait_timeout: Seconds at most.
            polling_interval: Polling interval in seconds; a cluster is watched instead.
            callback: Called with the job after each poll or change.
            timeout: Without effect.

        Returns:
            The job.

        Raises:
            WaitTimeoutError: The timeout has passed; a TimeoutError.
            JobFailedError: The job failed unexpectedly; a RuntimeError.
            NotFoundError: It does not exist, or was deleted meanwhile.
        """
        check_job_kind(job_kind)
        if unknown := set(expected_conditions) - set(names.CONDITIONS):
            raise ValidationError(
                [f"expected_conditions: must be of {', '.join(names.CONDITIONS)}, got {', '.join(sorted(unknown))}"]
            )
        state, waiting = "", ""
        for job in self.backend.watch(
            name, namespace or self.namespace, timeout=wait_timeout, interval=polling_interval
        ):
            if callback is not None:
                callback(job)
            if any(self._is_job(condition, None, None, None, job) for condition in expected_conditions):
                return job
            if self.is_job_failed(job=job):
                raise self.explain_failure(job)
            state = job.status.state if job.status is not None else "Pending"
            waiting = getattr(job.status, "waiting", None) or ""
        raise WaitTimeoutError(
            f"job {name} is {state}, not {' or '.join(sorted(expected_conditions))}, after {wait_timeout:g} s"
            + (f"; it waits: {waiting}" if waiting else "")
        )

    def explain_failure(self, job: MSJob, lines: int = 20) -> JobFailedError:
        """Return a failed job's error, with the last lines from the pod that failed first."""
        return explain_failure(self.backend, job, lines)

    def _is_job(
        self, condition: str, name: str | None, namespace: str | None, job_kind: str | None, job: MSJob | None
    ) -> bool:
        conditions = self.get_job_conditions(name, namespace, job_kind, job)
        return any(item.type == condition and item.status == "True" for item in conditions)
