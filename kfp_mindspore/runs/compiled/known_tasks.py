"""A compiled pipeline's tasks, with the arguments that are known before a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Functions of this package's steps that a component's code imports: of a line's names the last one, as isort sorts
# classes before functions.
STEP_FUNCTION = re.compile(r"from kfp_mindspore\.(?:steps|runs)(?:\.\w+)+ import (?:\w+, )*(\w+)")
# Replaced by KFP in the run.
_PLACEHOLDER = "{{$"
_CONDITION_INPUT = re.compile(r"parameter_values\['([^']+)'\]")


@dataclass(frozen=True)
class KnownTask:
    """A task in a compiled pipeline with the arguments that are known before the run.

    Args:
        name: Task name.
        functions: Functions in `kfp_mindspore.steps` that the component calls.
        parameters: The component's parameter names.
        arguments: Known arguments by parameter, defaults included; arguments from the task that writes an input
            artifact are `ARTIFACT_PARAMETER`, such as `dataset_task`.
        image: Container image.
    """

    name: str
    functions: tuple[str, ...]
    parameters: frozenset[str]
    arguments: Mapping[str, Any]
    image: str = ""


def list_known_tasks(spec: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> Iterator[KnownTask]:
    """Yield the tasks with a container, with the arguments that are known before the run.

    Left out are tasks whose condition depends on a run argument: it may disable them.

    Args:
        spec: A compiled pipeline.
        arguments: See `check_arguments`.
    """
    known = _read_defaults(spec["root"])
    if arguments is None:
        known = {name: value for name, value in known.items() if value != ""}
    yield from _walk(spec, spec["root"], {**known, **(arguments or {})})


def _walk(spec: Mapping[str, Any], component: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[KnownTask]:
    tasks: Mapping[str, Any] = component.get("dag", {}).get("tasks", {})
    for name, task in tasks.items():
        given = task.get("inputs", {}).get("parameters", {})
        condition = task.get("triggerPolicy", {}).get("condition", "")
        used = [given.get(key, {}).get("componentInputParameter") for key in _CONDITION_INPUT.findall(condition)]
        if any(parameter in values for parameter in used):
            continue
        inner = spec.get("components", {}).get(task["componentRef"]["name"], {})
        known = _resolve_all(inner, task, values)
        if "dag" in inner:
            yield from _walk(spec, inner, known)
            continue
        for artifact, source in task.get("inputs", {}).get("artifacts", {}).items():
            producer = tasks.get(source.get("taskOutputArtifact", {}).get("producerTask"))
            if producer is not None:
                of_producer = _resolve_all({}, producer, values)
                known.update({f"{artifact}_{key}": value for key, value in of_producer.items()})
        executor = spec["deploymentSpec"].get("executors", {}).get(inner.get("executorLabel"), {})
        container = executor.get("container", {})
        functions = STEP_FUNCTION.findall("\n".join(map(str, container.get("command", ()))))
        parameters = frozenset(inner.get("inputDefinitions", {}).get("parameters", {}))
        yield KnownTask(name, tuple(functions), parameters, known, container.get("image", ""))


def _resolve_all(component: Mapping[str, Any], task: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's known arguments, with the component's defaults for those that it does not set."""
    definitions = component.get("inputDefinitions", {}).get("parameters", {})
    given = task.get("inputs", {}).get("parameters", {})
    known = {name: value for name, value in _read_defaults(component).items() if name not in given}
    for name, source in given.items():
        if "componentInputParameter" in source:
            is_known = source["componentInputParameter"] in values
            value = values.get(source["componentInputParameter"])
        else:
            is_known = "constant" in source.get("runtimeValue", {})
            value = source.get("runtimeValue", {}).get("constant")
        if is_known and _PLACEHOLDER not in json.dumps(value, default=str):
            known[name] = _convert(value, definitions.get(name, {}))
    return known


def _read_defaults(component: Mapping[str, Any]) -> dict[str, Any]:
    parameters = component.get("inputDefinitions", {}).get("parameters", {})
    return {
        name: _convert(entry["defaultValue"], entry) for name, entry in parameters.items() if "defaultValue" in entry
    }


def _convert(value: Any, definition: Mapping[str, Any]) -> Any:
    # A compiled pipeline contains protobuf numbers: 2 is written as 2.0.
    is_integer = definition.get("parameterType") == "NUMBER_INTEGER" and isinstance(value, float)
    return int(value) if is_integer and value.is_integer() else value
