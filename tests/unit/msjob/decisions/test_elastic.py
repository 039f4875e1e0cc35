"""The number of workers of an elastic job: all decisions as tables."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.api.spec import ElasticPolicy
from kfp_mindspore.msjob.decisions.elastic import (
    decide_workers,
    get_elastic_grace_seconds,
    get_minimum_workers,
    get_requested_workers,
    get_restart_limit,
)
from kfp_mindspore.msjob.decisions.topology import Endpoints, build_topology


def make_job(workers: int, **policy: int) -> MSJob:
    job = build_msjob("digits", command=["python", "train.py"], workers=workers)
    job.elastic_policy = ElasticPolicy(**policy)
    return job


@pytest.mark.parametrize(
    ("workers", "policy", "requested", "minimum"),
    [
        (4, {}, 4, 1),
        (4, {"min_replicas": 2}, 4, 2),
        (4, {"min_replicas": 2, "max_replicas": 8}, 4, 2),
        (9, {"min_replicas": 2, "max_replicas": 8}, 8, 2),
        (1, {"min_replicas": 2, "max_replicas": 8}, 2, 2),
    ],
)
def test_replicas_are_limited_to_bounds(workers: int, policy: dict[str, int], requested: int, minimum: int) -> None:
    job = make_job(workers, **policy)
    assert (get_requested_workers(job), get_minimum_workers(job)) == (requested, minimum)


def test_defaults() -> None:
    job = make_job(2)
    assert (get_elastic_grace_seconds(job), get_restart_limit(job)) == (30.0, 3)
    job = make_job(2, grace_seconds=0, max_restarts=7)
    assert (get_elastic_grace_seconds(job), get_restart_limit(job)) == (0.0, 7)
    job.elastic_policy = None
    assert (get_requested_workers(job), get_minimum_workers(job), get_restart_limit(job)) == (2, 2, 3)


TABLE = [
    # current, available, missing seconds → workers of a job of 4 within 2 … 8, 30 s
    (4, 4, 0.0, 4, "complete"),
    (4, 3, 0.0, 4, "wait for the worker"),
    (4, 3, 29.9, 4, "wait for the worker"),
    (4, 3, 30.0, 3, "shrink after the grace time"),
    (4, 2, 30.0, 2, "shrink to the minimum"),
    (4, 1, 900.0, 4, "wait: fewer than the minimum"),
    (2, 2, 900.0, 2, "continue with fewer"),
    (2, 3, 0.0, 3, "grow by one"),
    (2, 4, 0.0, 4, "grow to the requested number"),
    (2, 9, 0.0, 4, "no more than requested"),
    (6, 6, 0.0, 4, "scaled down"),
]


@pytest.mark.parametrize(("current", "available", "seconds", "workers", "why"), TABLE)
def test_number_of_workers(current: int, available: int, seconds: float, workers: int, why: str) -> None:
    job = make_job(4, min_replicas=2, max_replicas=8)
    assert decide_workers(job, current=current, available=available, missing_seconds=seconds) == workers, why


@settings(deadline=None)
@given(current=st.integers(1, 9), available=st.integers(0, 9), seconds=st.floats(0, 100), low=st.integers(1, 4))
def test_change_stays_within_bounds(current: int, available: int, seconds: float, low: int) -> None:
    job = make_job(4, min_replicas=low, max_replicas=8)
    workers = decide_workers(job, current=current, available=available, missing_seconds=seconds)
    assert workers == current or low <= workers <= 4
    assert decide_workers(job, current=workers, available=workers) in (workers, 4)


@pytest.mark.parametrize("available", range(6))
def test_job_without_policy_keeps_its_workers(available: int) -> None:
    job = build_msjob("digits", command=["x"], workers=4)
    assert decide_workers(job, current=4, available=available, missing_seconds=900) == 4


@pytest.mark.parametrize(("workers", "variables"), [(4, {"MS_WORKER_NUM": "4"}), (3, {"MS_WORKER_NUM": "3"}), (1, {})])
def test_topology_of_fewer_workers(workers: int, variables: dict[str, str]) -> None:
    members = build_topology(make_job(4), Endpoints("127.0.0.1", 4000), workers).members
    ranked: list[Any] = [member for member in members if member.replica_type == "Worker"]
    assert [member.index for member in ranked] == list(range(workers))
    for member in ranked:
        expected = {**variables, "KFP_MINDSPORE_REQUESTED_WORKERS": "4"}
        assert {name: member.environment.get(name) for name in expected} == expected
    assert len(members) == workers + (workers > 1)
