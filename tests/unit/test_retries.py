from __future__ import annotations

import re
from pathlib import Path

import pytest
from tenacity import RetryCallState, RetryError, Retrying, stop_after_attempt

import kfp_mindspore
import mindsporeserver
from kfp_mindspore.retries import wait_with_jitter

PACKAGES = (Path(kfp_mindspore.__file__).parent, Path(mindsporeserver.__file__).parent)
# Modules with a backoff of their own, which is no retry of a call.
OWN_BACKOFF = {
    "inference/backends/supervisor.py": "restarts of a server, between steps of the supervisor's loop",
    "msjob/decisions/restart.py": "restarts of a gang, a rule that the operator shares",
    "operator/process/workqueue.py": "the rate limiter of the reconcile queue",
    "podside/artifacts.py": "pods of users have the standard library and fsspec only",
    "workers.py": "restarts of the server's workers",
}


class DemandingError(Exception):
    retry_after = 7.0


def list_delays(error: Exception, attempts: int) -> list[float]:
    delays: list[float] = []

    def fail() -> None:
        raise error

    with pytest.raises(RetryError):
        Retrying(sleep=delays.append, stop=stop_after_attempt(attempts), wait=wait_with_jitter(0.1, 1.0))(fail)
    return delays


def test_delays_double_up_to_the_longest() -> None:
    delays = list_delays(ValueError(), 8)
    for delay, longest in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert longest / 2 <= delay <= longest
    assert len(set(delays)) == len(delays), "with jitter"


def test_demanded_delay_is_the_shortest() -> None:
    assert all(7.0 <= delay <= 7.1 for delay in list_delays(DemandingError(), 4))


def test_delay_needs_no_outcome() -> None:
    state = RetryCallState(Retrying(), None, (), {})
    assert 0.05 <= wait_with_jitter(0.1, 1.0)(state) <= 0.1


def test_only_listed_modules_have_a_backoff_of_their_own() -> None:
    pattern = re.compile(
        r"\b2(\.0)? \*\* (min\(|\(self)|\b2 \* \w*(backoff|delay)|(backoff|delay)\w* \* 2\b|_RETRY_SECONDS = \("
    )
    found = {
        file.relative_to(package).as_posix()
        for package in PACKAGES
        for file in package.rglob("*.py")
        if pattern.search(file.read_text())
    }
    assert found == OWN_BACKOFF.keys()
