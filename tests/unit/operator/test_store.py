"""What was seen never gets older, whatever order lists, watches and answers come in."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.kube import PODS
from kfp_mindspore.operator.store import Key, Store

KEY = Key("ns", "job")


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


def test_a_job_is_kept_without_what_others_note_in_it() -> None:
    store = Store()
    assert store.put_job(make_job(5)) == KEY
    observed, version = store.observe(KEY)
    assert version == 5
    assert observed.job is not None
    assert observed.job["metadata"]["annotations"] == {"mine": "stays"}
    assert "managedFields" not in observed.job["metadata"]
    assert observed.job["spec"] == {"version": 5}


def test_what_is_known_already_is_no_news() -> None:
    store = Store()
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


def test_an_answer_that_comes_after_the_news_of_the_end_brings_nothing_back() -> None:
    store = Store()
    store.put_job(make_job(1))
    store.put(PODS, make_pod(5))
    assert store.drop(PODS, KEY, "job-worker-0", "p1") == KEY
    assert store.put(PODS, make_pod(5)) is None
    assert store.observe(KEY)[0].pods == ()
    # Its successor of the same name is another.
    assert store.put(PODS, make_pod(9, uid="p2")) == KEY
    assert store.drop(PODS, KEY, "job-worker-0", "p1") is None
    assert len(store.observe(KEY)[0].pods) == 1


def test_a_job_that_is_gone_leaves_nothing_when_its_pods_are_gone() -> None:
    store = Store()
    store.put_job(make_job(1))
    store.put(PODS, make_pod(2))
    assert store.drop_job(KEY, "another") is None
    assert store.drop_job(KEY, "u1") == KEY
    assert store.observe(KEY)[0].job is None
    assert store.states.total() == 0
    store.drop(PODS, KEY, "job-worker-0", "p1")
    assert store.entries == {}


def test_jobs_are_counted_by_state() -> None:
    store = Store()
    store.put_job(make_job(1))
    store.put_job(make_job(2, state="Running"))
    assert +store.states == {"Running": 1}
    store.put_job(make_job(3, state="Failed"))
    assert +store.states == {"Failed": 1}


def test_a_pod_told_to_go_is_seen_as_going_at_once() -> None:
    store = Store()
    store.put_job(make_job(1))
    store.put(PODS, make_pod(2))
    store.mark_deleting(PODS, KEY, "job-worker-0", "p1", 3)
    assert store.observe(KEY)[0].pods[0].deleting
    assert store.put(PODS, make_pod(2)) is None
    assert store.observe(KEY)[0].pods[0].deleting


def test_a_foreign_object_is_seen_until_it_is_forgotten() -> None:
    store = Store()
    store.put_job(make_job(1))
    store.put_foreign(KEY, PODS, make_pod(2, uid="other"))
    assert store.list_foreign(KEY) == [(PODS, "job-worker-0")]
    assert store.observe(KEY)[0].pods[0].uid == "other"
    store.drop_foreign(KEY, PODS, "job-worker-0")
    assert store.observe(KEY)[0].pods == ()


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=6))
def test_any_order_and_any_repetition_end_at_the_newest(order: list[int], repeats: list[int]) -> None:
    """One pod's life and then its successor's, as watches and answers may bring them."""
    phases = ["Pending", "Pending", "Running", "Failed"]
    news = [make_pod(10 + i, uid="p1", phase=phases[i]) for i in range(4)]
    news += [make_pod(20 + i, uid="p2", phase=phases[i]) for i in range(4)]
    store = Store()
    store.put_job(make_job(1))
    highest = 0
    for index in [*order, *repeats]:
        store.put(PODS, news[index])
        highest = max(highest, int(news[index]["metadata"]["resourceVersion"]))
        (view,) = store.observe(KEY)[0].pods
        newest = next(item for item in news if item["metadata"]["resourceVersion"] == str(highest))
        assert (view.uid, view.phase) == (newest["metadata"]["uid"], newest["status"]["phase"])
