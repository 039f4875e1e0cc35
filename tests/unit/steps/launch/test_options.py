from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.launch.options import format_task_options, merge_task_options, parse_task_options


def merge(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], **values: Any) -> JobOptions:
    executor_input = {"inputs": {"parameterValues": values}}
    monkeypatch.setattr(sys, "argv", ["step", "--executor_input", json.dumps(executor_input)])
    monkeypatch.setenv(JOB_OPTIONS_VARIABLE, format_task_options(changes))
    return merge_task_options(JobOptions(workers=2, backoff_limit=1, env={"A": "1", "B": "1"}))


def test_setters_take_precedence_over_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = merge(monkeypatch, {"workers": 1, "backoff_limit": 0, "env": {"B": "2"}})

    assert merged == JobOptions(workers=1, backoff_limit=0, env={"A": "1", "B": "2"})


def test_defaults_set_by_setters_replace_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert merge(monkeypatch, {"backoff_limit": JobOptions.backoff_limit}).backoff_limit == 3


def test_value_of_the_run_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = {"workers": "{{$.inputs.parameters['n']}}"}

    assert merge(monkeypatch, reference, n=3.0).workers == 3
    with pytest.raises(ValidationError, match="workers: must be an integer ≥ 1, got 0"):
        merge(monkeypatch, reference, n=0.0)


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
        parse_task_options(text)
