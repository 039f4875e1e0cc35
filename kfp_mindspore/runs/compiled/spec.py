"""Pure functions on a compiled pipeline: steps, parameters and environment variables."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError, suggest
from kfp_mindspore.runs.compiled.argument_checks import check_arguments

PipelineSpec = dict[str, Any]

_EXIT_STRATEGY = "ALL_UPSTREAM_TASKS_COMPLETED"
_COMPONENT_PREFIX = "comp-"
# KFP's parameter types: description for messages and Python types for a value.
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "NUMBER_INTEGER": ("an integer", (int,)),
    "NUMBER_DOUBLE": ("a number", (int, float)),
    "BOOLEAN": ("true or false", (bool,)),
    "STRING": ("a string", (str,)),
    "LIST": ("a JSON list", (list, tuple)),
    "STRUCT": ("a JSON object", (dict,)),
}


@dataclass(frozen=True)
class PipelineParameter:
    """A pipeline parameter.

    Args:
        name: Parameter name.
        kind: KFP's type, such as `NUMBER_INTEGER`.
        default: Default value; None if required.
        required: Whether a value must be given.
    """

    name: str
    kind: str
    default: Any
    required: bool


def read_spec(path: Path) -> PipelineSpec:
    """Read a compiled pipeline from YAML or JSON.

    Args:
        path: The file; documents after the first, such as a platform configuration, are ignored.

    Raises:
        UserError: The file is missing, not valid YAML, or not a compiled pipeline.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file ({error})") from error
    return parse_spec(text, subject=str(path))


def parse_spec(text: str, *, subject: str = "pipeline") -> PipelineSpec:
    """Parse a compiled pipeline without further documents; see `parse_documents`."""
    return parse_documents(text, subject=subject)[0]


def parse_documents(text: str, *, subject: str = "pipeline") -> list[PipelineSpec]:
    """Parse a compiled pipeline and the documents after it, such as a platform configuration.

    Raises:
        UserError: The text is not valid YAML or not a compiled pipeline; the message starts with `subject`.
    """
    import yaml

    documents: list[Any] = []
    # A YAML parser reads 1e-05 as a string.
    with contextlib.suppress(ValueError):
        documents = [json.loads(text)] if text.startswith("{") else []
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        documents = documents or [document for document in yaml.load_all(text, Loader=loader) if document is not None]
    except yaml.YAMLError as error:
        raise UserError(f"{subject}: not valid YAML: {' '.join(str(error).split())}") from error
    document = documents[0] if documents else None
    hint = "Compile one with: kfp-mindspore pipeline compile NAME -o FILE"
    if not isinstance(document, dict):
        raise UserError(
            f"{subject}: expected a compiled pipeline (a mapping), found {type(document).__name__}", hint=hint
        )
    missing = [key for key in ("pipelineInfo", "root", "deploymentSpec") if key not in document]
    if missing:
        raise UserError(f"{subject}: not a compiled pipeline, {', '.join(missing)} missing", hint=hint)
    return documents


def dump_spec(*documents: PipelineSpec) -> str:
    """Return a pipeline, with the documents after it, as YAML."""
    import yaml

    text: str = yaml.dump_all(documents, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=True)
    return text


def get_pipeline_name(spec: PipelineSpec) -> str:
    """Return the pipeline's name."""
    return str(spec["pipelineInfo"]["name"])


def list_parameters(spec: PipelineSpec) -> list[PipelineParameter]:
    """Return the pipeline's parameters, in the compiled order."""
    definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return [
        PipelineParameter(
            name,
            definition.get("parameterType", "STRING"),
            _restore_integer(definition.get("defaultValue"), definition.get("parameterType")),
            not (definition.get("isOptional") or "defaultValue" in definition),
        )
        for name, definition in definitions.items()
    ]


def list_steps(spec: PipelineSpec) -> list[str]:
    """Return the step names in topological order."""
    return list(dict.fromkeys(get_step_name(component) for _, component in walk_tasks(spec, spec["root"])))


def get_step_name(component: str) -> str:
    """Return a component's step name in a compiled pipeline."""
    return component.removeprefix(_COMPONENT_PREFIX)


def set_environment(spec: PipelineSpec, environment: Mapping[str, str], step_variable: str = "") -> PipelineSpec:
    """Return a pipeline copy with environment variables on every step.

    Args:
        spec: A compiled pipeline; not modified.
        environment: Variables for all steps; a step's own variables take precedence.
        step_variable: Variable to set to the step's name; empty for none.
    """
    changed = copy.deepcopy(spec)
    executors = changed["deploymentSpec"].get("executors", {})
    for component, definition in changed.get("components", {}).items():
        container = executors.get(definition.get("executorLabel"), {}).get("container")
        if container is None:
            continue
        variables = dict(environment)
        if step_variable:
            variables[step_variable] = get_step_name(component)
        present = {entry["name"]: entry for entry in container.get("env", [])}
        added = [{"name": name, "value": value} for name, value in variables.items() if name not in present]
        container["env"] = [*container.get("env", []), *added]
    return changed


def disable_exit_task_caching(spec: PipelineSpec) -> PipelineSpec:
    """Return a pipeline copy whose exit tasks always run: a cached one would send no notice and stop no job."""
    changed = copy.deepcopy(spec)
    for component in (changed["root"], *changed.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            if task.get("triggerPolicy", {}).get("strategy") == _EXIT_STRATEGY:
                task["cachingOptions"] = {}
    return changed


def convert_arguments(spec: PipelineSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Validate arguments against the pipeline's parameters and convert text to their types.

    Args:
        spec: A compiled pipeline.
        arguments: Values by parameter; text, as from a command line, is parsed as the parameter's type.

    Returns:
        Values with the parameter types.

    Raises:
        ValidationError: A parameter is unknown, missing or has the wrong type, or a step would refuse it; the
            message names each.
    """
    parameters = {parameter.name: parameter for parameter in list_parameters(spec)}
    errors = []
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in parameters:
            errors.append(f"{name}: no such parameter{suggest(name, parameters)}")
            continue
        try:
            values[name] = _convert(parameters[name].kind, value)
        except ValueError:
            errors.append(f"{name}: must be {_TYPES[parameters[name].kind][0]}, got {value!r}")
    errors += [f"{name}: is required" for name, it in parameters.items() if it.required and name not in arguments]
    if errors:
        raise ValidationError(errors, subject=f"run of {get_pipeline_name(spec)}")
    check_arguments(spec, values)
    return values


def _convert(kind: str, value: Any) -> Any:
    if kind not in _TYPES:
        return value
    types: Any = _TYPES[kind][1]
    if isinstance(value, bool) and bool not in types:
        raise ValueError(value)
    if isinstance(value, str) and kind != "STRING":
        value = json.loads(value.lower() if kind == "BOOLEAN" else value)
        if isinstance(value, bool) and kind != "BOOLEAN":
            raise ValueError(value)
    if kind == "NUMBER_INTEGER" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, types):
        raise ValueError(value)
    return float(value) if kind == "NUMBER_DOUBLE" else list(value) if kind == "LIST" else value


def _restore_integer(value: Any, kind: str | None) -> Any:
    # Compiled YAML contains protobuf numbers: default 2 is written as 2.0.
    return int(value) if kind == "NUMBER_INTEGER" and isinstance(value, float) and value.is_integer() else value


def walk_tasks(spec: Mapping[str, Any], component: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and component for each task with a container, in topological order.

    Args:
        spec: A compiled pipeline.
        component: The pipeline's root, or a component with a DAG.
    """
    tasks: dict[str, Any] = component.get("dag", {}).get("tasks", {})
    done: set[str] = set()
    pending = list(tasks)
    while pending:
        # Tasks without pending dependencies first; a cycle, which kfp never compiles, must not loop forever.
        ready = [name for name in pending if not set(tasks[name].get("dependentTasks", [])) & set(tasks) - done]
        for name in ready or pending:
            reference = tasks[name]["componentRef"]["name"]
            inner = spec.get("components", {}).get(reference, {})
            if "dag" in inner:
                yield from walk_tasks(spec, inner)
            else:
                yield name, reference
        done.update(ready or pending)
        pending = [name for name in pending if name not in done]
