from __future__ import annotations

import datetime
from typing import Any, cast

import pytest

from kfp_mindspore.cli.job_report import warn_of_missing_operator
from kfp_mindspore.msjob import MSJob, RunPolicy
from kfp_mindspore.msjob.backends.base import JobBackend, Pod

INSTALL = "Install one with: kfp-mindspore operator install --image REGISTRY/NAME@sha256:… --context here\n"


class Somewhere:
    """A backend of which only its flags and a job's pods are asked."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = pods

    def list_flags(self) -> list[str]:
        return ["--backend", "kubernetes", "--context", "here"]

    def list_pods(self, name: str, namespace: str) -> list[Pod]:
        return self.pods


@pytest.mark.parametrize(
    ("age", "manager", "pods", "told"),
    [
        (60, None, 0, INSTALL),
        (60, "kueue.x-k8s.io/multikueue", 0, "is managed by kueue.x-k8s.io/multikueue"),
        (1, None, 0, ""),
        # With a backlog the pods come first.
        (60, None, 1, ""),
    ],
)
def test_silence_is_told_with_a_command_that_works(
    capsys: pytest.CaptureFixture[str], age: int, manager: str | None, pods: int, told: str
) -> None:
    created = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
    document: dict[str, Any] = {
        "name": "digits",
        "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    job = MSJob(metadata=document, ms_replica_specs={}, run_policy=RunPolicy(managed_by=manager))
    warn_of_missing_operator(
        job, cast(JobBackend, Somewhere([Pod("digits-worker-0", "default", "Worker", 0, "Pending")] * pods))
    )
    printed = capsys.readouterr()
    assert told in printed.err
    assert bool(told) == bool(printed.err)
    assert printed.out == ""
