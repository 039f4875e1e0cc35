from typing import Any

import pytest
from google.protobuf import json_format
from kfp import dsl

from kfp_mindspore.dsl import msjob_component
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.options import from_json
from kfp_mindspore.settings import PLACEHOLDER_IMAGE


@msjob_component
def double(value: int) -> int:
    """Double a number."""
    return 2 * value


@msjob_component(workers=3, base_image="registry/python:1", env={"A": "1"})
def train(data: dsl.Input[dsl.Dataset], model: dsl.Output[dsl.Model], epochs: int = 1) -> float:
    return 1.0


def _source(component: Any) -> str:
    return component.component_spec.implementation.container.command[-1]


def test_python_func_is_callable() -> None:
    assert double.python_func(value=4) == 8


def test_component_has_interface_of_function() -> None:
    spec = train.component_spec
    assert list(spec.inputs) == ["data", "epochs", "task_config"]
    assert list(spec.outputs) == ["model", "Output"]
    assert spec.implementation.container.image == "registry/python:1"
    assert spec.implementation.container.env == {"KFP_MINDSPORE_IMAGE": "registry/python:1"}
    assert double.component_spec.implementation.container.image == PLACEHOLDER_IMAGE
    assert double.component_spec.implementation.container.env is None
    assert double.component_spec.description == "Double a number."


def test_source_ends_with_launcher() -> None:
    source = _source(train)
    assert "@msjob_component" not in source
    *_, last = source.strip().splitlines()
    assert last.startswith("train = launch_function(train, '{")
    options = from_json(JobOptions, last.partition(", ")[2].removesuffix(")").strip("'"), source="options")
    assert options.workers == 3
    assert options.env == {"A": "1"}
    compile(source, "component.py", "exec")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "msjob_component is invalid: workers: must be an integer ≥ 1, got 0"),
        ({"backoff_limit": -1}, "backoff_limit: must be an integer ≥ 0"),
        ({"restart_policy": "Maybe"}, "restart_policy: must be one of Always, OnFailure, Never, ExitCode"),
        ({"success_policy": "All"}, "success_policy: must be one of Default, AllWorkers"),
        ({"clean_pod_policy": ""}, "clean_pod_policy: must be one of All, Running, None"),
        ({"worker": 2}, "worker: unknown, must be one of workers, image, env"),
        ({"image": "a"}, "image: must be absent; base_image is the workers' image, too"),
        ({"storage": "disk"}, "storage: must be artifacts, workspace or claim:NAME/PATH, got 'disk'"),
        ({"active_deadline_seconds": 0}, "active_deadline_seconds: must be an integer ≥ 1"),
    ],
)
def test_invalid_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        msjob_component(**arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize("function", [lambda: None, print, int, "train"])
def test_non_function_is_refused(function: Any) -> None:
    with pytest.raises(UserError, match="expected a plain function"):
        msjob_component(function)


def test_string_annotations_are_refused() -> None:
    def work(value: "int") -> int:
        return value

    with pytest.raises(UserError, match=r"work: the annotation of 'value' is a string: 'int'"):
        msjob_component(work)


def test_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def hidden() -> int:\n    return 1\n", namespace)
    with pytest.raises(UserError, match="the source of hidden is not available"):
        msjob_component(namespace["hidden"])


def test_task_config_is_passed_through() -> None:
    @msjob_component
    def own(settings: dsl.TaskConfig, count: int = 1) -> int:
        return count

    for component, name in ((double, "task_config"), (own, "settings")):
        (spec,) = json_format.MessageToDict(component.pipeline_spec)["components"].values()
        parameters = spec["inputDefinitions"]["parameters"]
        assert [key for key, entry in parameters.items() if entry["parameterType"] == "TASK_CONFIG"] == [name]
        passthroughs = {entry["field"]: entry.get("applyToTask", False) for entry in spec["taskConfigPassthroughs"]}
        # The launcher reads its options from environment variables.
        assert [field for field, applied in passthroughs.items() if applied] == ["ENV"]
        assert set(passthroughs) == {field.name for field in dsl.TaskConfigField}
