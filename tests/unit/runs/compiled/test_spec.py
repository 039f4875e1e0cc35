from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.runs.compiled.image import list_placeholders, set_image
from kfp_mindspore.runs.compiled.spec import (
    convert_arguments,
    dump_spec,
    get_pipeline_name,
    list_parameters,
    list_steps,
    parse_spec,
    set_environment,
)

PLACEHOLDER = "kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image"


def make_spec() -> dict[str, Any]:
    def make_executor(image: str, **more: Any) -> dict[str, Any]:
        return {"container": {"image": image, "command": ["sh"], "args": ["-c"], **more}}

    kinds = ("NUMBER_INTEGER", "NUMBER_DOUBLE", "BOOLEAN", "STRING", "LIST", "STRUCT")
    parameters: dict[str, Any] = {kind.lower(): {"parameterType": kind, "isOptional": True} for kind in kinds}
    parameters["number_integer"]["defaultValue"] = 2.0
    parameters["needed"] = {"parameterType": "STRING"}
    return {
        "pipelineInfo": {"name": "sample"},
        "deploymentSpec": {
            "executors": {
                "exec-a": make_executor(PLACEHOLDER, env=[{"name": "OWN", "value": "1"}]),
                "exec-b": make_executor("registry/user:1"),
                "exec-c": make_executor(PLACEHOLDER),
                "exec-i": {"importer": {"artifactUri": {"constant": "s3://bucket/key"}}},
            }
        },
        "components": {
            "comp-a": {"executorLabel": "exec-a"},
            "comp-b": {"executorLabel": "exec-b"},
            "comp-c": {"executorLabel": "exec-c"},
            "comp-i": {"executorLabel": "exec-i"},
            "comp-condition-1": {
                "dag": {
                    "tasks": {
                        "c": {
                            "componentRef": {"name": "comp-c"},
                            "inputs": {"parameters": {"image": {"runtimeValue": {"constant": PLACEHOLDER}}}},
                        }
                    }
                }
            },
        },
        "root": {
            "inputDefinitions": {"parameters": parameters},
            "dag": {
                "tasks": {
                    "a": {"componentRef": {"name": "comp-a"}, "dependentTasks": ["b"]},
                    "condition-1": {"componentRef": {"name": "comp-condition-1"}, "dependentTasks": ["a"]},
                    "i": {"componentRef": {"name": "comp-i"}},
                    "b": {"componentRef": {"name": "comp-b"}, "dependentTasks": ["i"]},
                }
            },
        },
    }


def test_steps_are_in_topological_order() -> None:
    assert get_pipeline_name(make_spec()) == "sample"
    assert list_steps(make_spec()) == ["i", "b", "a", "c"]


def test_environment_is_set_on_every_container() -> None:
    spec = make_spec()
    before = copy.deepcopy(spec)
    changed = set_environment(spec, {"DIGEST": "d", "OWN": "2"}, "STEP")
    assert spec == before
    executors = changed["deploymentSpec"]["executors"]
    assert executors["exec-a"]["container"]["env"] == [
        {"name": "OWN", "value": "1"},
        {"name": "DIGEST", "value": "d"},
        {"name": "STEP", "value": "a"},
    ]
    assert {"name": "STEP", "value": "c"} in executors["exec-c"]["container"]["env"]
    assert executors["exec-i"] == before["deploymentSpec"]["executors"]["exec-i"]
    for executor in executors.values():
        executor.get("container", {}).pop("env", None)
    before["deploymentSpec"]["executors"]["exec-a"]["container"].pop("env")
    assert changed == before


IMAGES = ["registry:5000/mindspore:1.0", "registry/mindspore@sha256:" + "0" * 64]


@pytest.mark.parametrize("image", IMAGES)
def test_image_replaces_placeholders_of_steps_and_their_jobs(image: str) -> None:
    spec = make_spec()
    before = copy.deepcopy(spec)
    changed = set_image(spec, image)
    assert spec == before
    variable = {"name": "KFP_MINDSPORE_IMAGE", "value": image}
    expected = json.loads(json.dumps(before).replace(PLACEHOLDER, image))
    expected["deploymentSpec"]["executors"]["exec-a"]["container"]["env"].append(variable)
    expected["deploymentSpec"]["executors"]["exec-c"]["container"]["env"] = [variable]
    assert changed == expected
    assert list_placeholders(spec) == [PLACEHOLDER]
    assert list_placeholders(changed) == []


@pytest.mark.parametrize("other", IMAGES)
def test_image_of_earlier_call_is_replaced(other: str) -> None:
    first = set_image(make_spec(), IMAGES[0])
    assert set_image(first, other) == set_image(make_spec(), other)


def test_image_variable_of_user_is_kept() -> None:
    spec = make_spec()
    own = {"name": "KFP_MINDSPORE_IMAGE", "value": "registry/training:2"}
    spec["deploymentSpec"]["executors"]["exec-c"]["container"]["env"] = [own]
    changed = set_image(set_image(spec, IMAGES[0]), IMAGES[1])
    assert changed["deploymentSpec"]["executors"]["exec-c"]["container"]["env"] == [own]


@pytest.mark.parametrize("image", ["", "a b", "a\n"])
def test_invalid_image_is_refused(image: str) -> None:
    with pytest.raises(UserError, match="image: must be the name of an image"):
        set_image(make_spec(), image)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("number_integer", "3", 3),
        ("number_integer", 3.0, 3),
        ("number_double", "3", 3.0),
        ("number_double", "1e-3", 0.001),
        ("number_double", 2, 2.0),
        ("boolean", "True", True),
        ("boolean", "false", False),
        ("string", "3", "3"),
        ("string", "", ""),
        ("list", "[1, 2]", [1, 2]),
        ("list", (1,), [1]),
        ("struct", '{"a": 1}', {"a": 1}),
    ],
)
def test_arguments_are_converted(name: str, given: Any, expected: Any) -> None:
    converted = convert_arguments(make_spec(), {"needed": "x", name: given})[name]
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number_integer": "3.5"}, "number_integer: must be an integer, got '3.5'"),
        ({"number_integer": True}, "number_integer: must be an integer, got True"),
        ({"number_integer": "true"}, "number_integer: must be an integer"),
        ({"number_double": "much"}, "number_double: must be a number, got 'much'"),
        ({"boolean": "1"}, "boolean: must be true or false"),
        ({"list": "{}"}, "list: must be a JSON list"),
        ({"struct": "["}, "struct: must be a JSON object"),
        ({"string": 3}, "string: must be a string, got 3"),
        ({"sting": "3"}, "sting: no such parameter; did you mean 'string'?"),
        ({"zzz": "3"}, "zzz: no such parameter; expected number_integer"),
    ],
)
def test_invalid_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        convert_arguments(make_spec(), {"needed": "x", **arguments})
    assert any(error.startswith(message) for error in caught.value.errors)


def test_all_invalid_arguments_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        convert_arguments(make_spec(), {"boolean": "x", "zzz": "1"})
    assert len(caught.value.errors) == 3
    assert "needed: is required" in caught.value.errors


def test_defaults_keep_their_type() -> None:
    default = {parameter.name: parameter.default for parameter in list_parameters(make_spec())}["number_integer"]
    assert (default, type(default)) == (2, int)


@pytest.mark.parametrize("write", [json.dumps, dump_spec])
def test_small_numbers_stay_numbers(write: Callable[[Any], str]) -> None:
    spec = make_spec()
    spec["root"]["inputDefinitions"]["parameters"]["number_double"]["defaultValue"] = 1e-5
    assert parse_spec(write(spec)) == spec


def test_only_first_document_is_pipeline() -> None:
    assert parse_spec(json.dumps(make_spec()) + "\n---\nplatforms: {}\n") == make_spec()


@given(st.text(max_size=80))
def test_any_other_text_is_refused_with_its_subject(text: str) -> None:
    with pytest.raises(UserError, match=r"^file\.yaml: "):
        parse_spec(text, subject="file.yaml")
