from __future__ import annotations

import datetime
from typing import Any, cast

import pytest

from kfp_mindspore.cli.job_report import warn_of_silence
from kfp_mindspore.msjob import MSJob, RunPolicy
from kfp_mindspore.msjob.backends.base import Backend

INSTALL = "Install one with: kfp-mindspore operator install --image REGISTRY/NAME@sha256:… --context here\n"


class Somewhere:
    """A backend of which only its flags are asked."""

    def list_flags(self) -> list[str]:
        return ["--backend", "kubernetes", "--context", "here"]


@pytest.mark.parametrize(
    ("age", "manager", "told"),
    [
        (60, None, INSTALL),
        (60, "kueue.x-k8s.io/multikueue", "is left to kueue.x-k8s.io/multikueue"),
        (1, None, ""),
    ],
)
def test_silence_is_told_with_a_command_that_works(
    capsys: pytest.CaptureFixture[str], age: int, manager: str | None, told: str
) -> None:
    created = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
    document: dict[str, Any] = {
        "name": "digits",
        "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    job = MSJob(metadata=document, ms_replica_specs={}, run_policy=RunPolicy(managed_by=manager))
    warn_of_silence(job, cast(Backend, Somewhere()))
    printed = capsys.readouterr()
    assert told in printed.err
    assert bool(told) == bool(printed.err)
    assert printed.out == ""
