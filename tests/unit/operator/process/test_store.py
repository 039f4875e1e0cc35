"""The store never returns to an older state, for any order of lists, watches and responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.names import LEASE_ANNOTATION
from kfp_mindspore.operator.decisions.observed import Refusal
from kfp_mindspore.operator.process.store import JobCache, JobKey

KEY = JobKey("ns", "job")


def make_job(version: int, uid: str = "u1", state: str = "Created", generation: int = 1) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns",
            "name": "job",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": generation,
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "stays"},
        },
        "spec": {"version": version},
        "status": {"state": state},
    }


def make_pod(version: int, uid: str = "p1", phase: str = "Pending", name: str = "job-worker-0") -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "job"}
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "status": {"phase": phase}}


def test_managed_fields_and_last_applied_are_not_stored() -> None:
    store = JobCache()
    assert store.put_job(make_job(5)) == KEY
    observed, version = store.observe(KEY)
    assert version == 5
    assert observed.job is not None
    assert observed.job["metadata"]["annotations"] == {"mine": "stays"}
    assert "managedFields" not in observed.job["metadata"]
    assert observed.job["spec"] == {"version": 5}


@pytest.mark.parametrize(
    ("before", "after", "is_reported"),
    [
        ("2026-01-31T12:00:30Z", "2026-01-31T12:01:00Z", False),
        ("2026-01-31T12:00:30Z", "2026-01-31T12:00:30.500000+00:00", False),
        ("2026-01-31T12:00:30Z", "2026-01-31T12:00:10Z", True),
        ("2026-01-31T12:00:30Z", None, True),
        (None, "2026-01-31T12:00:30Z", True),
        ("2026-01-31T12:00:30Z", "soon", True),
        ("soon", "2026-01-31T12:00:30Z", True),
    ],
)
def test_lease_renewals_are_stored_and_not_reported(before: str | None, after: str | None, is_reported: bool) -> None:
    store = JobCache()
    for version, lease in ((5, before), (6, after)):
        job = {**make_job(version), "spec": {}}
        job["metadata"]["annotations"] |= {LEASE_ANNOTATION: lease} if lease else {}
        reported = store.put_job(job) == KEY
    assert reported is is_reported
    observed, version = store.observe(KEY)
    assert version == 6
    assert observed.job is not None
    assert observed.job["metadata"]["annotations"].get(LEASE_ANNOTATION) == after


@pytest.mark.parametrize(
    ("change", "is_kept"), [({"state": "Running"}, True), ({"generation": 2}, False), ({"uid": "u2"}, False)]
)
def test_refusals_belong_to_one_generation(change: dict[str, Any], is_kept: bool) -> None:
    store = JobCache()
    store.put_job(make_job(1))
    assert store.set_refusal(KEY, Refusal("exceeded quota"))
    assert not store.set_refusal(KEY, Refusal("exceeded quota"))
    assert store.set_refusal(KEY, Refusal("violates PodSecurity", is_permanent=True))
    store.put_job(make_job(2, **change))
    assert (store.observe(KEY)[0].refusal is not None) is is_kept


def test_known_versions_and_views_are_not_reported() -> None:
    store = JobCache()
    store.put_job(make_job(5))
    assert store.put_job(make_job(5)) is None
    assert store.put_job(make_job(4)) is None
    store.put(PODS, make_pod(7))
    assert store.put(PODS, make_pod(7)) is None
    # Nothing that a decision needs has changed.
    assert store.put(PODS, make_pod(8)) is None
    assert store.put(PODS, make_pod(9, phase="Running")) == KEY
    assert store.put(PODS, make_pod(8, phase="Pending")) is None
    assert store.observe(KEY)[0].pods[0].phase == "Running"


def test_late_responses_do_not_restore_deleted_objects() -> None:
    store = JobCache()
    store.put_job(make_job(1))
    store.put(PODS, make_pod(5))
    assert store.drop(PODS, KEY, "job-worker-0", "p1") == KEY
    assert store.put(PODS, make_pod(5)) is None
    assert store.observe(KEY)[0].pods == ()
    # Its successor of the same name is another.
    assert store.put(PODS, make_pod(9, uid="p2")) == KEY
    assert store.drop(PODS, KEY, "job-worker-0", "p1") is None
    assert len(store.observe(KEY)[0].pods) == 1


def test_deleted_jobs_leave_no_entry() -> None:
    store = JobCache()
    store.put_job(make_job(1))
    store.put(PODS, make_pod(2))
    assert store.drop_job(KEY, "another") is None
    assert store.drop_job(KEY, "u1") == KEY
    assert store.observe(KEY)[0].job is None
    assert store.states.total() == 0
    store.drop(PODS, KEY, "job-worker-0", "p1")
    assert store.entries == {}


def test_jobs_are_counted_by_state() -> None:
    store = JobCache()
    store.put_job(make_job(1))
    store.put_job(make_job(2, state="Running"))
    assert +store.states == {"Running": 1}
    store.put_job(make_job(3, state="Failed"))
    assert +store.states == {"Failed": 1}


def test_deletion_responses_mark_pods_as_deleting() -> None:
    store = JobCache()
    store.put_job(make_job(1))
    store.put(PODS, make_pod(2))
    store.mark_deleting(PODS, KEY, "job-worker-0", "p1", 3)
    assert store.observe(KEY)[0].pods[0].deleting
    assert store.put(PODS, make_pod(2)) is None
    assert store.observe(KEY)[0].pods[0].deleting


def test_foreign_objects_are_observed_until_dropped() -> None:
    store = JobCache()
    store.put_job(make_job(1))
    store.put_foreign(KEY, PODS, make_pod(2, uid="other"))
    assert store.list_foreign(KEY) == [(PODS, "job-worker-0")]
    assert store.observe(KEY)[0].pods[0].uid == "other"
    store.drop_foreign(KEY, PODS, "job-worker-0")
    assert store.observe(KEY)[0].pods == ()


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=6))
def test_newest_version_wins_in_any_order(order: list[int], repeats: list[int]) -> None:
    """Events of one pod and of its successor, from watches and responses."""
    phases = ["Pending", "Pending", "Running", "Failed"]
    news = [make_pod(10 + i, uid="p1", phase=phases[i]) for i in range(4)]
    news += [make_pod(20 + i, uid="p2", phase=phases[i]) for i in range(4)]
    store = JobCache()
    store.put_job(make_job(1))
    highest = 0
    for index in [*order, *repeats]:
        store.put(PODS, news[index])
        highest = max(highest, int(news[index]["metadata"]["resourceVersion"]))
        (view,) = store.observe(KEY)[0].pods
        newest = next(item for item in news if item["metadata"]["resourceVersion"] == str(highest))
        assert (view.uid, view.phase) == (newest["metadata"]["uid"], newest["status"]["phase"])
