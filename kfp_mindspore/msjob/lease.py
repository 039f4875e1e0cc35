"""A job's lease: a time on the job that its client renews, after which the operator fails an unfinished job."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from types import TracebackType

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from kfp_mindspore.msjob.api.names import LEASE_ANNOTATION
from kfp_mindspore.msjob.backends.base import JobBackend

# Longer than an API server restart, and than replacing a deleted launcher pod.
LEASE_SECONDS = 180.0
# After the launcher's pod was drained: enough for a person to retry the run.
DRAINED_LEASE_SECONDS = 3600.0
RENEWAL_SECONDS = 20.0


def format_lease(seconds: float = LEASE_SECONDS) -> str:
    """Return the LEASE_ANNOTATION value for a lease that starts now."""
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return end.strftime("%Y-%m-%dT%H:%M:%SZ")


class LeaseRenewal:
    """A thread that renews a job's lease during a `with` block.

    Args:
        backend: The job's backend.
        name: Job name.
        namespace: Job namespace.
        on_error: Called with a sentence when a renewal fails, once per sentence; the renewal is repeated.
        lease_seconds: Lease length.
        interval: Seconds between renewals.
    """

    def __init__(
        self,
        backend: JobBackend,
        name: str,
        namespace: str,
        *,
        on_error: Callable[[str], object],
        lease_seconds: float = LEASE_SECONDS,
        interval: float = RENEWAL_SECONDS,
    ) -> None:
        self._backend, self._name, self._namespace = backend, name, namespace
        self._on_error, self._lease_seconds, self._interval = on_error, lease_seconds, interval
        self._stopped = threading.Event()
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"lease of {name}", daemon=True)

    def __enter__(self) -> LeaseRenewal:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: a renewal may be waiting for an API server that does not respond.
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                patch = {"metadata": {"annotations": {LEASE_ANNOTATION: format_lease(self._lease_seconds)}}}
                self._backend.update(self._name, self._namespace, patch)
            except NotFoundError:
                return
            except KfpMindSporeError as error:
                text = f"cannot renew the lease of job {self._name}: {error}"
                if text not in self._reported and not self._stopped.is_set():
                    self._reported.add(text)
                    self._on_error(text)
            self._stopped.wait(self._interval)
