from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.msjob.api.names import CONDITIONS, CREATED, FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from kfp_mindspore.msjob.api.status import JobCondition, JobStatus, ReplicaStatus

steps = st.lists(st.tuples(st.sampled_from(CONDITIONS), st.booleans()), max_size=8)


def make_status(**conditions: str) -> JobStatus:
    return JobStatus([JobCondition(name, status) for name, status in conditions.items()])


@pytest.mark.parametrize("order", list(itertools.permutations([RUNNING, SUCCEEDED, CREATED])))
def test_order_of_conditions_has_no_meaning(order: tuple[str, ...]) -> None:
    statuses = {RUNNING: "False", SUCCEEDED: "True", CREATED: "True"}
    status = make_status(**{name: statuses[name] for name in order})
    assert status.has(SUCCEEDED)
    assert status.has(CREATED)
    assert not status.has(RUNNING)
    assert status.is_finished
    assert status.state == SUCCEEDED


@pytest.mark.parametrize(("value", "held"), [("True", True), ("False", False), ("Unknown", False), ("true", False)])
def test_only_true_holds(value: str, held: bool) -> None:
    assert make_status(Running=value).has(RUNNING) is held


def test_one_of_two_conditions_of_type_is_enough() -> None:
    assert JobStatus([JobCondition(FAILED, "True"), JobCondition(FAILED, "False")]).has(FAILED)


def test_find_returns_condition_that_does_not_hold() -> None:
    status = make_status(Running="False")
    found = status.get_condition(RUNNING)
    assert found is status.conditions[0]
    assert status.get_condition(FAILED) is None


@pytest.mark.parametrize(
    ("held", "state"),
    [
        ((), "Pending"),
        ((CREATED,), "Created"),
        ((CREATED, RUNNING), RUNNING),
        ((CREATED, RESTARTING), RESTARTING),
        ((CREATED, RUNNING, RESTARTING), RESTARTING),
        ((CREATED, SUSPENDED), SUSPENDED),
        ((CREATED, RUNNING, SUCCEEDED), SUCCEEDED),
        ((SUCCEEDED, FAILED), FAILED),
    ],
)
def test_state_is_condition_of_highest_precedence(held: tuple[str, ...], state: str) -> None:
    assert make_status(**dict.fromkeys(held, "True")).state == state


def test_state_without_true_condition_is_created() -> None:
    assert make_status(Created="True", Running="False").state == "Created"


@pytest.mark.parametrize(
    ("held", "written", "left"),
    [
        ((CREATED,), RUNNING, (CREATED, RUNNING)),
        ((CREATED, RUNNING), RESTARTING, (CREATED, RESTARTING)),
        ((CREATED, RESTARTING), RUNNING, (CREATED, RUNNING)),
        ((CREATED, RUNNING), SUSPENDED, (CREATED, SUSPENDED)),
        ((CREATED, RESTARTING), SUSPENDED, (CREATED, SUSPENDED)),
        ((CREATED, SUSPENDED), RUNNING, (CREATED, RUNNING)),
        ((CREATED, RUNNING), SUCCEEDED, (CREATED, SUCCEEDED)),
        ((CREATED, RESTARTING), FAILED, (CREATED, FAILED)),
        ((CREATED, SUSPENDED), FAILED, (CREATED, FAILED)),
    ],
)
def test_condition_clears_those_that_it_excludes(held: tuple[str, ...], written: str, left: tuple[str, ...]) -> None:
    status = make_status(**dict.fromkeys(held, "True"))
    status.set_condition(written, "Because", "it is so")
    assert tuple(name for name in CONDITIONS if status.has(name)) == tuple(sorted(left, key=CONDITIONS.index))
    assert {item.type for item in status.conditions} == {*held, written}, "what is cleared stays, as False"
    for item in status.conditions:
        if item.status == "False":
            assert (item.reason, item.message) == ("Because", "it is so")


def test_false_condition_clears_no_other() -> None:
    status = make_status(Created="True", Running="True")
    status.set_condition(SUSPENDED, "JobResumed", "it goes on", status=False)
    assert status.has(RUNNING)
    assert not status.has(SUSPENDED)


def test_times_differ_between_transition_and_update() -> None:
    status = JobStatus()
    status.set_condition(RUNNING, "JobRunning", "2 of 3 run")
    (condition,) = status.conditions
    first = condition.last_transition_time
    assert first is not None
    assert condition.last_update_time == first
    status.set_condition(RUNNING, "JobRunning", "3 of 3 run")
    assert condition.message == "3 of 3 run"
    assert condition.last_transition_time == first
    assert condition.last_update_time is not None
    assert condition.last_update_time >= first
    status.set_condition(RUNNING, "JobEnded", "none runs", status=False)
    assert condition.last_transition_time == condition.last_update_time
    assert len(status.conditions) == 1


def test_unknown_condition() -> None:
    with pytest.raises(ValueError, match=r"must be one of Created, .*, got 'Done'"):
        JobStatus().set_condition("Done", "", "")


@settings(deadline=None)
@given(steps)
def test_each_condition_type_is_unique_and_status_round_trips(
    steps: list[tuple[str, bool]],
) -> None:
    status = JobStatus(replica_statuses={"Worker": ReplicaStatus(active=1, label_selector={"matchLabels": {"a": "b"}})})
    for name, value in steps:
        status.set_condition(name, "Because", "of it", status=value)
        assert status.has(name) is value
    types = [item.type for item in status.conditions]
    assert len(types) == len(set(types))
    assert not (status.has(RUNNING) and status.has(RESTARTING))
    assert JobStatus.from_dict(status.to_dict()) == status


def test_unknown_fields_of_status_are_left_out() -> None:
    status = JobStatus.from_dict({"conditions": [{"type": "Running", "status": "True", "x": 1}], "y": 2})
    assert status.to_dict() == {"conditions": [{"type": "Running", "status": "True"}]}


def test_status_without_conditions() -> None:
    assert JobStatus.from_dict({"conditions": None}) == JobStatus()
    assert not JobStatus().is_finished
