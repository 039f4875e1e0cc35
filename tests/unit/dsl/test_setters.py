from collections.abc import Callable
from typing import Any

import pytest
from kfp import compiler, dsl

from kfp_mindspore import dsl as mindspore_dsl
from kfp_mindspore.components.training.train_msjob import train_msjob
from kfp_mindspore.dsl.task import get_options
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.runs.compiled.spec import read_spec
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.launch.options import resolve_task_options


def collect(*setters: Callable[[Any], Any]) -> dict[str, Any]:
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
            {"backoff_limit": 0, "clean_pod_policy": "None"},
        ),
        (
            lambda task: mindspore_dsl.set_run_policy(task, active_deadline_seconds=9, ttl_seconds_after_finished=0),
            {"active_deadline_seconds": 9, "ttl_seconds_after_finished": 0},
        ),
        (
            lambda task: mindspore_dsl.set_run_policy(task, start_timeout_seconds=9),
            {"start_timeout_seconds": 9},
        ),
        (lambda task: mindspore_dsl.set_restart_policy(task, "ExitCode"), {"restart_policy": "ExitCode"}),
        (lambda task: mindspore_dsl.set_success_policy(task, "AllWorkers"), {"success_policy": "AllWorkers"}),
        (lambda task: mindspore_dsl.set_worker_count(task, 4), {"workers": 4}),
        (lambda task: mindspore_dsl.add_worker_env(task, "A", ""), {"env": {"A": ""}}),
        (
            lambda task: mindspore_dsl.set_worker_resources(task, accelerator="huawei.com/Ascend910"),
            {"resources": {"limits": {"huawei.com/Ascend910": "1"}, "requests": {"huawei.com/Ascend910": "1"}}},
        ),
        (lambda task: mindspore_dsl.add_job_label(task, "team", "a"), {"labels": {"team": "a"}}),
        (lambda task: mindspore_dsl.add_job_annotation(task, "why", "b"), {"annotations": {"why": "b"}}),
        (
            lambda task: mindspore_dsl.set_run_policy(task, delete_after_done=True),
            {"delete_after_done": True},
        ),
        (
            lambda task: mindspore_dsl.set_worker_pod(
                task,
                labels={"a": "b"},
                annotations={"sidecar.istio.io/inject": "false"},
                image_pull_secrets=["registry"],
                service_account="trainer",
                security_context={"fsGroup": 1000},
                empty_dirs={"/dev/shm": "8Gi"},
            ),
            {
                "pod_labels": {"a": "b"},
                "pod_annotations": {"sidecar.istio.io/inject": "false"},
                "image_pull_secrets": ["registry"],
                "service_account": "trainer",
                "security_context": {"fsGroup": 1000},
                "empty_dirs": {"/dev/shm": "8Gi"},
            },
        ),
    ],
)
def test_setter_sets_only_its_field(setter: Callable[[Any], Any], expected: dict[str, Any]) -> None:
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
    assert options == {
        "resources": {"limits": wanted, "requests": wanted},
        "backoff_limit": 1,
        "active_deadline_seconds": 60,
        "env": {"A": "1", "B": "2"},
    }


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
            "clean_pod_policy: must be one of All, Running, None, got 'Some'",
        ),
        (lambda task: mindspore_dsl.set_restart_policy(task, "Sometimes"), "policy: must be one of Always"),
        (lambda task: mindspore_dsl.set_success_policy(task, ""), "policy: must be one of Default, AllWorkers"),
        (lambda task: mindspore_dsl.set_worker_count(task, 0), "count: must be an integer ≥ 1, got 0"),
        (lambda task: mindspore_dsl.add_worker_env(task, "A=B", "1"), "name: must not contain =, got 'A=B'"),
        (lambda task: mindspore_dsl.add_worker_env(task, "A", 1), "value: must be a string, got 1"),
        (lambda task: mindspore_dsl.set_worker_resources(task, cpu=""), "cpu: must be a string, got ''"),
        (lambda task: mindspore_dsl.add_job_label(task, "", "a"), "key: must be a string, got ''"),
        (lambda task: mindspore_dsl.set_worker_pod(task, service_account=""), "service_account: must be a string"),
        (lambda task: mindspore_dsl.set_worker_pod(task, labels={"a": 1}), "labels.a: must be a string, got 1"),
        (lambda task: mindspore_dsl.set_worker_pod(task, empty_dirs={"shm": "1Gi"}), "empty_dirs: must have absolute"),
    ],
)
def test_invalid_value_is_refused(setter: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        collect(setter)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("setter", "field", "expected"),
    [
        (lambda task, value: mindspore_dsl.set_worker_count(task, value), "workers", 3),
        (lambda task, value: mindspore_dsl.set_run_policy(task, backoff_limit=value), "backoff_limit", 3),
        (lambda task, value: mindspore_dsl.add_worker_env(task, "A", value), "env", {"A": "3"}),
        (lambda task, value: mindspore_dsl.add_job_label(task, "key", f"n-{value}"), "labels", {"key": "n-3"}),
        (lambda task, value: mindspore_dsl.set_worker_pod(task, labels={"a": value}), "pod_labels", {"a": "3"}),
        (lambda task, value: mindspore_dsl.set_worker_pod(task, empty_dirs={"/b": value}), "empty_dirs", {"/b": "3"}),
        (
            lambda task, value: mindspore_dsl.set_worker_resources(task, accelerator="x/y", accelerator_count=value),
            "resources",
            {"limits": {"x/y": "3"}, "requests": {"x/y": "3"}},
        ),
        (
            lambda task, value: mindspore_dsl.set_worker_pod(task, service_account=f"a-{value}"),
            "service_account",
            "a-3",
        ),
    ],
)
@pytest.mark.parametrize("by_task", [False, True])
def test_pipeline_channel_is_resolved_in_step(
    setter: Callable[[Any, Any], Any], field: str, expected: Any, by_task: bool, tmp_path: Any
) -> None:
    @dsl.component(base_image="python:3.11", install_kfp_package=False)
    def count() -> int:
        return 3

    @dsl.pipeline(name="channel")
    def pipeline(value: int = 3):  # type: ignore[no-untyped-def]
        channel = count().output if by_task else value
        setter(train_msjob(command=["true"]), channel)

    compiler.Compiler().compile(pipeline, str(tmp_path / "channel.yaml"))
    spec = read_spec(tmp_path / "channel.yaml")
    inputs = spec["root"]["dag"]["tasks"]["train-msjob"]["inputs"]["parameters"]
    (name,) = [name for name in inputs if name.startswith("msjob-option--")]
    environment = spec["deploymentSpec"]["executors"]["exec-train-msjob"]["container"]["env"]
    (text,) = [entry["value"] for entry in environment if entry["name"] == JOB_OPTIONS_VARIABLE]
    # The driver turns integers into floats.
    assert getattr(JobOptions().merge(resolve_task_options(text, {name: 3.0})), field) == expected
    with pytest.raises(UserError, match="the step has no input 'msjob-option--"):
        resolve_task_options(text, {})


def test_options_are_set_on_their_task_only(tmp_path: Any) -> None:
    @dsl.pipeline(name="two")
    def pipeline():  # type: ignore[no-untyped-def]
        mindspore_dsl.set_worker_count(train_msjob(command=["first"]), 3)
        train_msjob(command=["second"])

    compiler.Compiler().compile(pipeline, str(tmp_path / "two.yaml"))
    text = (tmp_path / "two.yaml").read_text()
    assert text.count("KFP_MINDSPORE_MSJOB_OPTIONS") == 1
    assert """value: '{"workers": 3}'""" in text
