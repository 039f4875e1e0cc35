from __future__ import annotations

import datetime
import threading
from unittest.mock import create_autospec

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from kfp_mindspore.msjob.api.manifest import parse_time
from kfp_mindspore.msjob.api.names import LEASE_ANNOTATION
from kfp_mindspore.msjob.backends.base import JobBackend
from kfp_mindspore.msjob.lease import LeaseRenewal, format_lease

SECONDS = 300.0


class Renewals:
    """A backend whose renewals have prescribed results; the last one is repeated."""

    def __init__(self, *results: Exception | None) -> None:
        self.backend: JobBackend = create_autospec(JobBackend, instance=True)
        self.backend.update.side_effect = self._update  # type: ignore[attr-defined]
        self._results, self._changed = list(results), threading.Condition()
        self.values: list[str] = []
        self.errors: list[str] = []

    def _update(self, name: str, namespace: str, patch: dict[str, dict[str, dict[str, str]]]) -> None:
        assert (name, namespace) == ("job", "team")
        with self._changed:
            self.values.append(patch["metadata"]["annotations"][LEASE_ANNOTATION])
            self._changed.notify_all()
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if result is not None:
            raise result

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.values) >= count, SECONDS)

    def start(self) -> LeaseRenewal:
        return LeaseRenewal(self.backend, "job", "team", on_error=self.errors.append, interval=0.001)


def test_lease_ends_after_its_length() -> None:
    end = parse_time(format_lease(60))
    assert end is not None
    assert 58 < (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds() <= 60


def test_lease_is_renewed_until_end_of_block() -> None:
    renewals = Renewals(None)
    with renewals.start() as renewal:
        renewals.wait(3)
    renewal._thread.join(SECONDS)
    assert not renewal._thread.is_alive()


def test_failed_renewal_is_reported_once_and_repeated() -> None:
    renewals = Renewals(KfpMindSporeError("forbidden"), KfpMindSporeError("forbidden"), None)
    with renewals.start():
        renewals.wait(4)
    assert renewals.errors == ["cannot renew the lease of job job: forbidden"]


def test_lease_of_deleted_job_is_not_renewed() -> None:
    renewals = Renewals(NotFoundError("gone"))
    with renewals.start() as renewal:
        renewal._thread.join(SECONDS)
        assert not renewal._thread.is_alive()
    assert (len(renewals.values), renewals.errors) == (1, [])
