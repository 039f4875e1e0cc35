"""Thresholds of a compiled pipeline's gates, validated before a step starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError


def check_gates(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse thresholds outside the range of their metric, and unknown metrics, in all steps that have both.

    A step has a gate if its component has the parameters `metric` and `threshold`. Values that an earlier step computes
    are not known yet. The task is known if the step that writes the artifact `dataset` has a parameter `task` that is
    set; otherwise a threshold without a metric must be in the range of one default metric.

    Args:
        spec: A compiled pipeline.
        arguments: Arguments of the run by name; defaults are added.

    Raises:
        ValidationError: The message names each step, its metric and the range.
    """
    errors = _list_errors(spec, spec["root"], _complete(spec["root"], arguments))
    if errors:
        raise ValidationError(errors, subject=f"pipeline {spec['pipelineInfo']['name']}")


def _list_errors(spec: Mapping[str, Any], component: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    errors = []
    tasks = component.get("dag", {}).get("tasks", {})
    for name, task in tasks.items():
        inner = spec.get("components", {}).get(task["componentRef"]["name"], {})
        known = _resolve_all(inner, task, values)
        if "dag" in inner:
            errors += _list_errors(spec, inner, known)
        elif {"metric", "threshold"} <= inner.get("inputDefinitions", {}).get("parameters", {}).keys():
            dataset = task.get("inputs", {}).get("artifacts", {}).get("dataset", {})
            producer = tasks.get(dataset.get("taskOutputArtifact", {}).get("producerTask"))
            given = {} if producer is None else _resolve_all({}, producer, values)
            errors += _check_gate(name, known.get("metric"), known.get("threshold"), given.get("task"))
    return errors


def _check_gate(step: str, metric: Any, threshold: Any, task: Any) -> list[str]:
    from kfp_mindspore.evaluation.metrics import check_threshold
    from kfp_mindspore.formats.dataset import TASKS

    # A text has placeholders that KFP replaces in the run.
    is_number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    if not isinstance(metric, str) or "{{" in metric:
        return []
    try:
        check_threshold(metric, float(threshold) if is_number else None, task=task if task in TASKS else "")
    except ValidationError as error:
        return [f"step {step}: {message}" for message in error.errors]
    except UserError as error:
        return [f"step {step}: {error.message}"]
    return []


def _resolve_all(component: Mapping[str, Any], task: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's arguments by parameter, with the defaults of its component."""
    inputs = task.get("inputs", {}).get("parameters", {})
    return _complete(component, {key: _resolve(value, values) for key, value in inputs.items()})


def _complete(component: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the defaults of the component's parameters."""
    parameters = component.get("inputDefinitions", {}).get("parameters", {})
    defaults = {name: entry["defaultValue"] for name, entry in parameters.items() if "defaultValue" in entry}
    return {**defaults, **values}


def _resolve(value: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return a task's argument; None for one that is computed in the run."""
    if "componentInputParameter" in value:
        return values.get(value["componentInputParameter"])
    return value.get("runtimeValue", {}).get("constant")
