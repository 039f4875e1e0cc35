from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.launch.options import JobOptions

TEXTS = st.dictionaries(st.text(min_size=1), st.text())
OPTIONS = st.builds(
    JobOptions,
    workers=st.none() | st.integers(1, 64),
    backoff_limit=st.none() | st.integers(0, 9),
    active_deadline_seconds=st.none() | st.integers(1),
    ttl_seconds_after_finished=st.none() | st.integers(0),
    clean_pod_policy=st.sampled_from([None, "Running", "All", "None"]),
    restart_policy=st.sampled_from([None, "OnFailure", "ExitCode"]),
    success_policy=st.sampled_from([None, "Default", "AllWorkers"]),
    resources=st.just({}) | st.just({"limits": {"cpu": "1"}}),
    env=TEXTS,
    labels=TEXTS,
    annotations=TEXTS,
)


@given(OPTIONS)
def test_options_round_trip_through_json(options: JobOptions) -> None:
    assert JobOptions.from_json(options.to_json()) == options


@given(OPTIONS, OPTIONS)
def test_merge_replaces_values_and_merges_mappings(first: JobOptions, second: JobOptions) -> None:
    merged = first.merge(**vars(second))
    assert merged.workers == (first.workers if second.workers is None else second.workers)
    assert merged.env == {**first.env, **second.env}
    assert merged.merge(**vars(second)) == merged
    assert merged.merge(**vars(JobOptions())) == merged


def test_zero_is_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB_OPTIONS_VARIABLE, JobOptions(backoff_limit=0).to_json())
    assert JobOptions(backoff_limit=3).merge(**vars(JobOptions.from_environment())).backoff_limit == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, got list"),
        (json.dumps({"worker": 2}), "unknown field 'worker'"),
    ],
)
def test_invalid_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        JobOptions.from_json(text)
