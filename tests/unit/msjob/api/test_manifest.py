from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.msjob.api.manifest import deserialize, format_time, parse_time, serialize, to_field_name
from kfp_mindspore.msjob.api.spec import RunPolicy, SchedulingPolicy

UTC = datetime.timezone.utc
times = st.datetimes(
    min_value=datetime.datetime(1970, 1, 2),
    max_value=datetime.datetime(2100, 1, 1),
    timezones=st.just(UTC) | st.builds(datetime.timezone, st.builds(datetime.timedelta, hours=st.integers(-12, 12))),
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("name", "name"),
        ("clean_pod_policy", "cleanPodPolicy"),
        ("ttl_seconds_after_finished", "ttlSecondsAfterFinished"),
        ("ms_replica_specs", "msReplicaSpecs"),
    ],
)
def test_fields_are_spelled_in_camel_case(name: str, wire: str) -> None:
    assert to_field_name(name) == wire


@settings(deadline=None)
@given(documents)
def test_plain_document_is_its_own_wire_form(document: Any) -> None:
    assert serialize(document) == document


def test_none_is_dropped_from_dataclasses_only() -> None:
    policy = RunPolicy(backoff_limit=0, suspend=False, scheduling_policy=SchedulingPolicy(min_resources={"cpu": None}))
    assert serialize({"policy": policy, "other": None}) == {
        "policy": {"backoffLimit": 0, "suspend": False, "schedulingPolicy": {"minResources": {"cpu": None}}},
        "other": None,
    }


def test_dataclass_itself_is_value() -> None:
    assert serialize(RunPolicy) is RunPolicy


def test_unknown_wire_fields_are_left_out() -> None:
    assert deserialize(RunPolicy, {"backoffLimit": 1, "fromTheFuture": 2}) == {"backoff_limit": 1}


@settings(deadline=None)
@given(times)
def test_times_round_trip_to_microsecond(time: datetime.datetime) -> None:
    text = format_time(time)
    assert text.endswith("Z")
    assert parse_time(text) == time
    assert serialize([time]) == [text]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31T12:00:00Z", datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.250000Z", datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime.datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_times_of_kubernetes(text: str, time: datetime.datetime) -> None:
    parsed = parse_time(text)
    assert parsed == time
    assert parsed is not None
    assert parsed.tzinfo is UTC


def test_no_time() -> None:
    assert parse_time(None) is None
