"""Job options that task setters have set, in an environment variable on the task.

The compiled task contains the variable, and so does the cache key.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.options import merge_values, parse_values, to_text
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.handover.executor_input import read_executor_input


def merge_task_options(options: JobOptions) -> JobOptions:
    """Return options with those of the present task's setters, which take precedence, mappings sorted by key.

    KFP's struct has no order, and each attempt at a step has to submit the same job.

    Args:
        options: The component's arguments.

    Raises:
        UserError: The variable is invalid, or an option refers to an input without a value.
    """
    values = read_executor_input().get("inputs", {}).get("parameterValues", {})
    changes = resolve_task_options(os.environ.get(JOB_OPTIONS_VARIABLE, ""), values)
    merged: dict[str, Any] = {
        name: dict(sorted(value.items())) if isinstance(value, Mapping) else value
        for name, value in merge_values(vars(options), changes).items()
    }
    return JobOptions(**merged)


def resolve_task_options(text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the variable with values instead of references to task inputs.

    Args:
        text: The variable's value.
        values: Parameter values of the executor input.

    Raises:
        UserError: The text is invalid, or a referenced input has no value.
    """
    resolved = {name: _resolve(option, values) for name, option in parse_task_options(text).items()}
    for amounts in resolved.get("resources", {}).values():
        amounts.update({name: to_text(amount) for name, amount in amounts.items()})
    return resolved


def parse_task_options(text: str) -> dict[str, Any]:
    """Return the options in the variable by field.

    Raises:
        UserError: It is not a JSON object, or has an unknown field.
    """
    hint = "Compile the pipeline with the kfp-mindspore version of the image."
    return parse_values(JobOptions, text, source=JOB_OPTIONS_VARIABLE, hint=hint)


def format_task_options(changes: Mapping[str, Any]) -> str:
    """Return the variable's value.

    Args:
        changes: Options by field.
    """
    return json.dumps(changes, sort_keys=True)


def refer_to_input(name: str) -> str:
    """Return the reference to a task input in an option, in KFP's placeholder notation.

    KFP 2.17 replaces no placeholders in environment variables; `merge_task_options` does, in the step.
    """
    return f"{{{{$.inputs.parameters['{name}']}}}}"


_REFERENCE = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")


def _resolve(option: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(option, Mapping):
        return {key: _resolve(value, values) for key, value in option.items()}
    if isinstance(option, (list, tuple)):
        return [_resolve(value, values) for value in option]
    if not isinstance(option, str):
        return option

    def get(name: str) -> Any:
        if name not in values:
            raise UserError(
                f"{JOB_OPTIONS_VARIABLE}: the step has no input {name!r}, got {', '.join(values) or 'none'}"
            )
        value = values[name]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    if whole := _REFERENCE.fullmatch(option):
        return get(whole[1])
    return _REFERENCE.sub(lambda match: to_text(get(match[1])), option)
