from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.crd import build_job_schema
from kfp_mindspore.msjob.manifest import to_field_name
from kfp_mindspore.msjob.options import JobOptions
from kfp_mindspore.options import from_json, list_options, to_json

TEXTS = st.dictionaries(st.text(min_size=1), st.text())
OPTIONS = st.builds(
    JobOptions,
    workers=st.integers(1, 64),
    backoff_limit=st.integers(0, 9),
    active_deadline_seconds=st.none() | st.integers(1),
    clean_pod_policy=st.sampled_from(["Running", "All", "None"]),
    restart_policy=st.sampled_from(["OnFailure", "ExitCode"]),
    resources=st.just({}) | st.just({"limits": {"cpu": "1"}}),
    env=TEXTS,
    labels=TEXTS,
)


@given(OPTIONS)
def test_options_round_trip_through_json(options: JobOptions) -> None:
    assert from_json(JobOptions, to_json(options), source="OPTIONS") == options


@given(OPTIONS, OPTIONS)
def test_merge_replaces_values_and_merges_mappings(first: JobOptions, second: JobOptions) -> None:
    merged = first.merge(vars(second))

    assert merged.workers == second.workers
    assert merged.env == {**first.env, **second.env}
    assert merged.active_deadline_seconds == (second.active_deadline_seconds or first.active_deadline_seconds)
    assert merged.merge(vars(second)) == merged
    assert merged.merge({}) == merged


def test_numbers_of_pipelines_become_texts() -> None:
    assert JobOptions(env={"A": 1.0, "B": True}).env == {"A": "1", "B": "true"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers: must be an integer ≥ 1, got 0"),
        ({"restart_policy": "Sometimes"}, "restart_policy: must be one of Always, OnFailure, Never, ExitCode"),
        ({"empty_dirs": {"shm": "1Gi"}}, "empty_dirs: must be absolute paths, got 'shm'"),
        ({"env": ["A=1"]}, r"env: must be a dict, got \['A=1'\]"),
    ],
)
def test_invalid_option_is_refused_when_it_is_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JobOptions(**changes)


def test_limits_are_those_of_the_manifest() -> None:
    """Entry and server accept the same values, except for the default of `restart_policy`."""
    spec = build_job_schema()["properties"]["spec"]["properties"]
    worker = spec["msReplicaSpecs"]["additionalProperties"]["properties"]
    fields = {**spec["runPolicy"]["properties"], "workers": worker["replicas"]}
    fields["restartPolicy"] = worker["restartPolicy"]
    compared = 0
    for entry in list_options(JobOptions):
        if (field := fields.get(to_field_name(entry.name))) is None:
            continue
        compared += 1
        assert {word: field[word] for word in ("minimum", "enum") if word in field} == dict(entry.limits)
        assert field.get("default") == ("Never" if entry.name == "restart_policy" else entry.default)
    assert compared == 6
