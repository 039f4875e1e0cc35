from collections.abc import Callable
from typing import Any

import pytest
from kfp import compiler, dsl

from kfp_mindspore import dsl as mindspore_dsl
from kfp_mindspore.components.training.train_msjob import train_msjob
from kfp_mindspore.dsl.task import get_options
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.steps.options import JobOptions


def collect(*setters: Callable[[Any], Any]) -> JobOptions:
    """Apply setters to a task and return the options it then carries."""
    found = []

    @dsl.pipeline(name="collect")
    def pipeline():  # type: ignore[no-untyped-def]
        task = train_msjob(command=["true"])
        for setter in setters:
            assert setter(task) is task
        found.append(get_options(task))

    return found[0]


@pytest.mark.parametrize(
    ("setter", "expected"),
    [
        (
            lambda task: mindspore_dsl.set_run_policy(task, backoff_limit=0, clean_pod_policy="None"),
            JobOptions(backoff_limit=0, clean_pod_policy="None"),
        ),
        (
            lambda task: mindspore_dsl.set_run_policy(task, active_deadline_seconds=9, ttl_seconds_after_finished=0),
            JobOptions(active_deadline_seconds=9, ttl_seconds_after_finished=0),
        ),
        (lambda task: mindspore_dsl.set_restart_policy(task, "ExitCode"), JobOptions(restart_policy="ExitCode")),
        (lambda task: mindspore_dsl.set_success_policy(task, "AllWorkers"), JobOptions(success_policy="AllWorkers")),
        (lambda task: mindspore_dsl.set_worker_count(task, 4), JobOptions(workers=4)),
        (lambda task: mindspore_dsl.add_worker_env(task, "A", ""), JobOptions(env={"A": ""})),
        (
            lambda task: mindspore_dsl.set_worker_resources(task, accelerator="huawei.com/Ascend910"),
            JobOptions(resources={"limits": {"huawei.com/Ascend910": "1"}, "requests": {"huawei.com/Ascend910": "1"}}),
        ),
        (lambda task: mindspore_dsl.add_job_label(task, "team", "a"), JobOptions(labels={"team": "a"})),
        (lambda task: mindspore_dsl.add_job_annotation(task, "why", "b"), JobOptions(annotations={"why": "b"})),
    ],
)
def test_setter_sets_only_its_field(setter: Callable[[Any], Any], expected: JobOptions) -> None:
    assert collect(setter) == expected


def test_options_of_setters_are_merged() -> None:
    options = collect(
        lambda task: mindspore_dsl.set_worker_resources(task, cpu="1"),
        lambda task: mindspore_dsl.set_worker_resources(task, memory="2Gi"),
        lambda task: mindspore_dsl.set_run_policy(task, backoff_limit=1),
        lambda task: mindspore_dsl.set_run_policy(task, active_deadline_seconds=60),
        lambda task: mindspore_dsl.add_worker_env(task, "A", "1"),
        lambda task: mindspore_dsl.add_worker_env(task, "B", "2"),
    )
    wanted = {"cpu": "1", "memory": "2Gi"}
    assert options == JobOptions(
        resources={"limits": wanted, "requests": wanted},
        backoff_limit=1,
        active_deadline_seconds=60,
        env={"A": "1", "B": "2"},
    )


@pytest.mark.parametrize(
    ("setter", "message"),
    [
        (
            lambda task: mindspore_dsl.set_run_policy(task, backoff_limit=-1),
            "set_run_policy is invalid: backoff_limit: must be an integer ≥ 0, got -1",
        ),
        (
            lambda task: mindspore_dsl.set_run_policy(task, active_deadline_seconds=True),
            "active_deadline_seconds: must be an integer ≥ 1, got True",
        ),
        (
            lambda task: mindspore_dsl.set_run_policy(task, clean_pod_policy="Some"),
            "clean_pod_policy: must be one of Running, All, None, got 'Some'",
        ),
        (lambda task: mindspore_dsl.set_restart_policy(task, "Sometimes"), "policy: must be one of Always"),
        (lambda task: mindspore_dsl.set_success_policy(task, ""), "policy: must be one of Default, AllWorkers"),
        (lambda task: mindspore_dsl.set_worker_count(task, 0), "count: must be an integer ≥ 1, got 0"),
        (lambda task: mindspore_dsl.add_worker_env(task, "A=B", "1"), "name: must not contain =, got 'A=B'"),
        (lambda task: mindspore_dsl.add_worker_env(task, "A", 1), "value: must be a string, got 1"),
        (lambda task: mindspore_dsl.set_worker_resources(task, cpu=""), "cpu: must be a string, got ''"),
        (lambda task: mindspore_dsl.add_job_label(task, "", "a"), "key: must be a string, got ''"),
    ],
)
def test_invalid_value_is_refused(setter: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        collect(setter)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "setter",
    [
        lambda task, value: mindspore_dsl.set_worker_count(task, value),
        lambda task, value: mindspore_dsl.set_run_policy(task, backoff_limit=value),
        lambda task, value: mindspore_dsl.set_worker_resources(task, cpu=value),
        lambda task, value: mindspore_dsl.add_job_label(task, "key", f"{value}"),
    ],
)
def test_pipeline_parameter_is_refused(setter: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(UserError, match="must be a constant"):

        @dsl.pipeline(name="channel")
        def pipeline(value: int = 1):  # type: ignore[no-untyped-def]
            setter(train_msjob(command=["true"]), value)


def test_options_are_set_on_their_task_only(tmp_path: Any) -> None:
    @dsl.pipeline(name="two")
    def pipeline():  # type: ignore[no-untyped-def]
        mindspore_dsl.set_worker_count(train_msjob(command=["first"]), 3)
        train_msjob(command=["second"])

    compiler.Compiler().compile(pipeline, str(tmp_path / "two.yaml"))
    text = (tmp_path / "two.yaml").read_text()
    assert text.count("KFP_MINDSPORE_MSJOB_OPTIONS") == 1
    assert """value: '{"workers": 3}'""" in text
