"""A step's MSJob options, passed from the task setters to the step in an environment variable on the task.

The compiled task contains the variable, and so does the cache key.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.options import option
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.handover.executor_input import read_executor_input
from kfp_mindspore.steps.launch.arguments import to_argument


@dataclass(frozen=True)
class JobOptions:
    """A step's MSJob options; None or empty for the step's default.

    Args:
        workers: Worker count.
        backoff_limit: Restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is terminated and fails.
        start_timeout_seconds: Seconds for which the job's pods may be unable to start.
        ttl_seconds_after_finished: Seconds after which a finished job is deleted.
        clean_pod_policy: Pods or processes deleted when the job finishes: `Running`, `All` or `None`.
        restart_policy: `Always`, `OnFailure`, `Never` or `ExitCode`.
        success_policy: `AllWorkers`, or `Default` for worker 0.
        resources: Each worker's Kubernetes resource requirements: {"requests": {…}, "limits": {…}}.
        env: Each worker's environment variables.
        labels: Job labels.
        annotations: Job annotations.
        pod_labels: Job pod labels.
        pod_annotations: Job pod annotations.
        image_pull_secrets: Registry secret names for the job's pods.
        service_account: Service account for the job's pods.
        security_context: PodSecurityContext for the job's pods.
        empty_dirs: Size limits for empty directories in the job's pods by path, such as {"/dev/shm": "8Gi"}.
        delete_after_done: Whether the step deletes its finished job.
        storage: How data reach the job's pods: `artifacts`, `workspace` or `claim:NAME/PATH`.
    """

    workers: int | None = option(None, minimum=1)
    backoff_limit: int | None = option(None, minimum=0)
    active_deadline_seconds: int | None = option(None, minimum=1)
    start_timeout_seconds: int | None = option(None, minimum=1)
    ttl_seconds_after_finished: int | None = option(None, minimum=0)
    clean_pod_policy: str | None = None
    restart_policy: str | None = None
    success_policy: str | None = None
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: Sequence[str] | None = None
    service_account: str | None = None
    security_context: Mapping[str, Any] = field(default_factory=dict)
    empty_dirs: Mapping[str, str] = field(default_factory=dict)
    delete_after_done: bool | None = None
    storage: str | None = None

    @classmethod
    def from_json(cls, text: str) -> JobOptions:
        """Parse `to_json` output; an empty text means no options.

        Raises:
            UserError: The text is not a JSON object, or has an unknown field.
        """
        if not text:
            return cls()
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise UserError(f"{JOB_OPTIONS_VARIABLE}: not valid JSON ({error})") from None
        if not isinstance(raw, dict):
            raise UserError(f"{JOB_OPTIONS_VARIABLE}: expected a JSON object, got {type(raw).__name__}")
        unknown = sorted(set(raw) - {entry.name for entry in dataclasses.fields(cls)})
        if unknown:
            raise UserError(
                f"{JOB_OPTIONS_VARIABLE}: unknown field {unknown[0]!r}",
                hint="Compile the pipeline with the kfp-mindspore version of the image.",
            )
        return cls(**raw)

    @classmethod
    def from_environment(cls) -> JobOptions:
        """Return the current task's options, with this run's values instead of pipeline channels."""
        values = read_executor_input().get("inputs", {}).get("parameterValues", {})
        return cls.from_json(os.environ.get(JOB_OPTIONS_VARIABLE, "")).resolve(values)

    def resolve(self, values: Mapping[str, Any]) -> JobOptions:
        """Return a copy with values instead of references to task inputs.

        Args:
            values: Parameter values in the executor input.

        Raises:
            UserError: A referenced input has no value.
        """
        resolved = {entry.name: _resolve(getattr(self, entry.name), values) for entry in dataclasses.fields(self)}
        for name in ("env", "labels", "annotations", "pod_labels", "pod_annotations", "empty_dirs"):
            resolved[name] = {key: to_argument(value) for key, value in resolved[name].items()}
        resolved["resources"] = {
            kind: {key: to_argument(value) for key, value in amounts.items()}
            for kind, amounts in resolved["resources"].items()
        }
        return JobOptions(**resolved)

    def to_json(self) -> str:
        """Return the non-default options as JSON with sorted keys."""
        fields = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return json.dumps({name: value for name, value in fields.items() if value not in (None, {})}, sort_keys=True)

    def merge(self, **changes: Any) -> JobOptions:
        """Return a copy with changes: a mapping is merged, None is ignored, any other value replaces."""
        merged: dict[str, Any] = {}
        for name, value in changes.items():
            if isinstance(value, Mapping):
                merged[name] = {**getattr(self, name), **value}
            elif value is not None:
                merged[name] = value
        return dataclasses.replace(self, **merged)


def refer_to_input(name: str) -> str:
    """Return the reference to a task input in an option, in KFP's placeholder notation.

    KFP 2.17 replaces no placeholders in environment variables; `JobOptions.resolve` does, in the step.
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
    return _REFERENCE.sub(lambda match: to_argument(get(match[1])), option)
