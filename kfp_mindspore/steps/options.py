"""Options of a step's MSJob, passed from the task setters to the step in an environment variable of the task.

The variable is part of the compiled task, and with it of the cache key.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE


@dataclass(frozen=True)
class JobOptions:
    """Options of a step's MSJob; None or empty for the step's default.

    Args:
        workers: Number of workers.
        backoff_limit: Number of restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is terminated and fails.
        ttl_seconds_after_finished: Seconds after which a finished job is deleted.
        clean_pod_policy: Pods or processes deleted when the job finishes: `Running`, `All` or `None`.
        restart_policy: `Always`, `OnFailure`, `Never` or `ExitCode`.
        success_policy: `AllWorkers`, or `Default` for worker 0.
        resources: Kubernetes resource requirements of each worker: {"requests": {…}, "limits": {…}}.
        env: Environment variables of each worker.
        labels: Labels of the job.
        annotations: Annotations of the job.
    """

    workers: int | None = None
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    clean_pod_policy: str | None = None
    restart_policy: str | None = None
    success_policy: str | None = None
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> JobOptions:
        """Parse the output of `to_json`; an empty text means no options.

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
        """Return the options of the current task."""
        return cls.from_json(os.environ.get(JOB_OPTIONS_VARIABLE, ""))

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
