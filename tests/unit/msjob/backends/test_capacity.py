"""When a worker of a local elastic job is missing, and when it is tried again."""

from __future__ import annotations

import pytest

from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.api.spec import ElasticPolicy
from kfp_mindspore.msjob.backends.capacity import Capacity


def make_job(workers: int = 4, *, elastic: bool = True) -> MSJob:
    job = build_msjob("digits", command=["python", "train.py"], workers=workers)
    if elastic:
        job.elastic_policy = ElasticPolicy(min_replicas=2, max_replicas=8, grace_seconds=30)
    return job


@pytest.mark.parametrize(
    ("attempts", "available"),
    [
        # Seconds that each attempt runs until it fails.
        ([5], 4),
        ([5, 29], 3),
        ([5, 31], 4),
        ([5, 29, 5], 3),
        ([5, 29, 5, 5], 2),
        # Fewer than the minimum: tried again with what there was.
        ([5, 5, 5, 5, 5, 5], 2),
    ],
)
def test_worker_that_fails_again_within_grace_time_is_missing(attempts: list[float], available: int) -> None:
    job, capacity, now = make_job(), Capacity(), 100.0
    for seconds in attempts:
        capacity.get_available(job, now)
        capacity.record_start(now)
        now += seconds
        capacity.record_failure(job, now)
    assert capacity.get_available(job, now) == available


def test_missing_worker_is_tried_again_later_and_later() -> None:
    job, capacity = make_job(), Capacity()
    assert capacity.get_available(job, 0) == 4
    capacity.record_missing(job, 3, 0)
    assert [capacity.get_available(job, now) for now in (0, 299)] == [3, 3]
    assert capacity.get_available(job, 300) == 4
    # The trial fails at once: twice the time.
    capacity.record_start(301)
    capacity.record_failure(job, 305)
    assert [capacity.get_available(job, now) for now in (305, 904)] == [3, 3]
    assert capacity.get_available(job, 906) == 4


def test_another_number_of_workers_ends_wait() -> None:
    job, capacity = make_job(), Capacity()
    assert capacity.get_available(job, 0) == 4
    capacity.record_missing(job, 2, 0)
    assert capacity.get_available(job, 1) == 2
    assert capacity.get_available(make_job(5), 2) == 5


def test_job_without_policy_has_no_missing_worker() -> None:
    job, capacity = make_job(elastic=False), Capacity()
    for now in (0, 1, 2, 3):
        capacity.record_start(now)
        capacity.record_failure(job, now)
    assert capacity.get_available(job, 4) == 4
