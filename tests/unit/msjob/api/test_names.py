from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.msjob.api import names
from kfp_mindspore.msjob.api.names import REPLICA_TYPES, resolve_replica_type


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("Worker", "Worker"),
        ("worker", "Worker"),
        ("WORKER", "Worker"),
        ("ps", "PS"),
        ("Ps", "PS"),
        ("scheduler", "Scheduler"),
        ("Workers", None),
        (" worker", None),
        ("Master", None),
        ("", None),
    ],
)
def test_replica_types_are_found_in_any_case(word: str, found: str | None) -> None:
    assert resolve_replica_type(word) == found


@settings(deadline=None)
@given(st.sampled_from(REPLICA_TYPES), st.data())
def test_any_mixture_of_cases_is_same_type(name: str, data: st.DataObject) -> None:
    upper = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    word = "".join(letter.upper() if up else letter.lower() for letter, up in zip(name, upper, strict=True))
    assert resolve_replica_type(word) == name


def test_longest_name_leaves_room_for_its_members() -> None:
    longest = max(map(len, REPLICA_TYPES))
    assert names.MAXIMUM_NAME + len("-") + longest + len("-0") == 63
