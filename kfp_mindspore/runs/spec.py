"""Pure functions on a compiled pipeline: its steps, its parameters, and what a local run sets on each step."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError

PipelineSpec = dict[str, Any]

_COMPONENT_PREFIX = "comp-"
# KFP's parameter types: what a person may write and the Python types of a value.
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "NUMBER_INTEGER": ("a whole number", (int,)),
    "NUMBER_DOUBLE": ("a number", (int, float)),
    "BOOLEAN": ("true or false", (bool,)),
    "STRING": ("text", (str,)),
    "LIST": ("a JSON list", (list, tuple)),
    "STRUCT": ("a JSON object", (dict,)),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a pipeline.

    Args:
        name: Its name.
        kind: KFP's type, such as `NUMBER_INTEGER`.
        default: Its default; None when it has to be given.
        required: Whether it has to be given.
    """

    name: str
    kind: str
    default: Any
    required: bool


def read_spec(path: Path) -> PipelineSpec:
    """Read a compiled pipeline from YAML or JSON.

    Args:
        path: The file; of several documents (a platform configuration may follow) the first counts.

    Raises:
        UserError: The file is missing, no YAML, or no compiled pipeline.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file ({error})") from error
    return parse_spec(text, subject=str(path))


def parse_spec(text: str, *, subject: str = "pipeline") -> PipelineSpec:
    """Parse a compiled pipeline.

    Raises:
        UserError: It is no YAML, or no compiled pipeline; the message starts with `subject`.
    """
    import yaml

    try:
        # JSON by its own rules: YAML's take 1e-05 for text.
        document = json.loads(text) if text.startswith("{") else None
    except ValueError:
        document = None
    try:
        document = document or next(
            iter(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))), None
        )
    except yaml.YAMLError as error:
        raise UserError(f"{subject}: not valid YAML: {' '.join(str(error).split())}") from error
    hint = "Compile one with: kfp-mindspore pipeline compile NAME -o FILE"
    if not isinstance(document, dict):
        raise UserError(
            f"{subject}: expected a compiled pipeline (a mapping), found {type(document).__name__}", hint=hint
        )
    missing = [key for key in ("pipelineInfo", "root", "deploymentSpec") if key not in document]
    if missing:
        raise UserError(f"{subject}: not a compiled pipeline, {', '.join(missing)} missing", hint=hint)
    return document


def dump_spec(spec: PipelineSpec) -> str:
    """Return a pipeline as YAML."""
    import yaml

    text: str = yaml.dump(spec, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=True)
    return text


def get_pipeline_name(spec: PipelineSpec) -> str:
    """Return the pipeline's name."""
    return str(spec["pipelineInfo"]["name"])


def list_parameters(spec: PipelineSpec) -> list[Parameter]:
    """Return the pipeline's parameters, in the compiled order."""
    definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return [
        Parameter(
            name,
            definition.get("parameterType", "STRING"),
            _restore_integer(definition.get("defaultValue"), definition.get("parameterType")),
            not (definition.get("isOptional") or "defaultValue" in definition),
        )
        for name, definition in definitions.items()
    ]


def list_steps(spec: PipelineSpec) -> list[str]:
    """Return the names of the steps that run something, each after those it depends on."""
    return list(dict.fromkeys(_walk(spec, spec["root"])))


def get_step_name(component: str) -> str:
    """Return the step's name for the name of its component in a compiled pipeline."""
    return component.removeprefix(_COMPONENT_PREFIX)


def set_environment(spec: PipelineSpec, environment: Mapping[str, str], step_variable: str = "") -> PipelineSpec:
    """Return a copy of the pipeline with environment variables on every step.

    Args:
        spec: A compiled pipeline; unchanged.
        environment: Variables for all steps. What a step sets itself stays.
        step_variable: Name of a further variable that gets the step's own name; none by default.
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


def convert_arguments(spec: PipelineSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check arguments against the pipeline's parameters and bring text into their types.

    Args:
        spec: A compiled pipeline.
        arguments: Values by parameter; text, as from a command line, is read as the parameter's type.

    Returns:
        The values with the types that KFP expects.

    Raises:
        ValidationError: A parameter is unknown, missing or of a wrong type; the message names each.
    """
    parameters = {parameter.name: parameter for parameter in list_parameters(spec)}
    errors = []
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in parameters:
            close = difflib.get_close_matches(name, parameters, n=1)
            known = f"did you mean {close[0]}?" if close else f"known are {', '.join(parameters) or 'none'}"
            errors.append(f"{name}: no such parameter, {known}")
            continue
        try:
            values[name] = _convert(parameters[name].kind, value)
        except ValueError:
            errors.append(f"{name}: must be {_TYPES[parameters[name].kind][0]}, got {value!r}")
    errors += [f"{name}: must be given" for name, it in parameters.items() if it.required and name not in arguments]
    if errors:
        raise ValidationError(errors, subject=f"A run of {get_pipeline_name(spec)}")
    return values


def _convert(kind: str, value: Any) -> Any:
    if kind not in _TYPES:
        return value
    types: Any = _TYPES[kind][1]
    if isinstance(value, bool) and bool not in types:
        raise ValueError(value)
    if isinstance(value, str) and kind != "STRING":
        if kind == "BOOLEAN":
            return (
                {"true": True, "false": False}[value.lower()] if value.lower() in ("true", "false") else _refuse(value)
            )
        value = json.loads(value)
        if isinstance(value, bool):
            raise ValueError(value)
    if kind == "NUMBER_INTEGER" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, types):
        raise ValueError(value)
    return float(value) if kind == "NUMBER_DOUBLE" else list(value) if kind == "LIST" else value


def _refuse(value: Any) -> Any:
    raise ValueError(value)


def _restore_integer(value: Any, kind: str | None) -> Any:
    # Compiled YAML holds protobuf numbers: a default of 2 stands there as 2.0.
    return int(value) if kind == "NUMBER_INTEGER" and isinstance(value, float) and value.is_integer() else value


def _walk(spec: PipelineSpec, component: dict[str, Any]) -> Iterator[str]:
    tasks: dict[str, Any] = component.get("dag", {}).get("tasks", {})
    done: set[str] = set()
    pending = list(tasks)
    while pending:
        # Tasks without open dependencies first; a compiled graph has no cycles, the fallback keeps a bad one finite.
        ready = [name for name in pending if not set(tasks[name].get("dependentTasks", [])) & set(tasks) - done]
        for name in ready or pending:
            reference = tasks[name]["componentRef"]["name"]
            inner = spec.get("components", {}).get(reference, {})
            if "dag" in inner:
                yield from _walk(spec, inner)
            else:
                yield get_step_name(reference)
        done.update(ready or pending)
        pending = [name for name in pending if name not in done]
