from __future__ import annotations

import datetime
from typing import Any
from unittest.mock import create_autospec

import pytest

from kfp_mindspore.cli.job.report import WaitingReport, print_job, print_jobs, warn_of_missing_operator
from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.api.spec import ElasticPolicy, ReplicaSpec, RunPolicy
from kfp_mindspore.msjob.api.status import DetailedStatus, ProgressMetric, TrainingProgress
from kfp_mindspore.msjob.backends.base import JobBackend, Pod

INSTALL = "Install one with: kfp-mindspore operator install --image REGISTRY/NAME@sha256:… --context here\n"


def make_backend(pods: list[Pod]) -> JobBackend:
    """Return a double of a cluster with these pods."""
    backend: JobBackend = create_autospec(JobBackend, instance=True)
    backend.list_flags.return_value = ["--backend", "kubernetes", "--context", "here"]  # type: ignore[attr-defined]
    backend.list_pods.return_value = pods  # type: ignore[attr-defined]
    return backend


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
def test_missing_operator_is_reported_with_install_command(
    capsys: pytest.CaptureFixture[str], age: int, manager: str | None, pods: int, told: str
) -> None:
    created = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
    document: dict[str, Any] = {
        "name": "digits",
        "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    job = MSJob(metadata=document, ms_replica_specs={}, run_policy=RunPolicy(managed_by=manager))
    warn_of_missing_operator(job, make_backend([Pod("digits-worker-0", "default", "Worker", 0, "Pending")] * pods))
    printed = capsys.readouterr()
    assert told in printed.err
    assert bool(told) == bool(printed.err)
    assert printed.out == ""


def test_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    job = MSJob(metadata={"name": "digits"}, ms_replica_specs={})
    job.status = DetailedStatus(progress=TrainingProgress(45, 5, 10, 450, 1000, 3725, [ProgressMetric("loss", "0.31")]))
    print_job(job, [], make_backend([Pod("digits-worker-0", "default", "Worker", 0, "Running")]))
    line = "progress: 45 %, epoch 5/10, step 450/1000, about 1:02:05 left, loss 0.31"
    assert line in capsys.readouterr().out.splitlines()


def test_restarts_of_elastic_job_are_counted_against_its_own_limit(capsys: pytest.CaptureFixture[str]) -> None:
    job = MSJob(
        metadata={"name": "digits"},
        ms_replica_specs={"Worker": ReplicaSpec()},
        elastic_policy=ElasticPolicy(max_restarts=10),
    )
    job.status = DetailedStatus(restarts=2)
    print_job(job, [], make_backend([]))
    assert "restarts: 2 of 10" in capsys.readouterr().out.splitlines()


def test_list_shows_which_job_waits(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [MSJob(metadata={"name": name}, ms_replica_specs={"Worker": ReplicaSpec()}) for name in ("first", "second")]
    jobs[1].status = DetailedStatus(waiting='queue "research": quota', waiting_reason="Queued")
    print_jobs(jobs)
    header, *rows = capsys.readouterr().out.lower().splitlines()
    assert "waits" in header
    assert ["queued" in row for row in rows if "first" in row or "second" in row] == [False, True]


def test_each_reason_of_waiting_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    report = WaitingReport()
    for waiting in ("exceeded quota", "exceeded quota", None, "no node", None):
        job = MSJob(metadata={"name": "digits"}, ms_replica_specs={})
        job.status = DetailedStatus(waiting=waiting)
        report(job)
    assert capsys.readouterr().err == "waits: exceeded quota\nwaits: no node\n"
