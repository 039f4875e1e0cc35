"""What the task setters hand to the step that makes an MSJob, carried in one environment variable of the task.

The variable is part of the compiled step: a run's cache key contains it, and any runner passes it on.
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
    """What is set on a task for the MSJob that it makes; None or empty means: as the step decides.

    Args:
        workers: Number of workers.
        backoff_limit: Number of restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is ended and fails.
        ttl_seconds_after_finished: Seconds after its end when the job is deleted.
        clean_pod_policy: Which processes or pods are removed at the end: `Running`, `All` or `None`.
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
        """Read what `to_json` wrote; an empty text gives no options.

        Raises:
            UserError: The text is no JSON object, or has a field that this version does not know.
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
                hint="Compile the pipeline with the version of kfp-mindspore that the image holds.",
            )
        return cls(**raw)

    @classmethod
    def from_environment(cls) -> JobOptions:
        """Read the options of the task that this process runs."""
        return cls.from_json(os.environ.get(JOB_OPTIONS_VARIABLE, ""))

    def to_json(self) -> str:
        """Return the options that are set, as JSON with sorted keys."""
        fields = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return json.dumps({name: value for name, value in fields.items() if value not in (None, {})}, sort_keys=True)

    def merge(self, **changes: Any) -> JobOptions:
        """Return the options with changes: a mapping adds to what is set, None leaves it, any other value replaces."""
        merged: dict[str, Any] = {}
        for name, value in changes.items():
            if isinstance(value, Mapping):
                merged[name] = {**getattr(self, name), **value}
            elif value is not None:
                merged[name] = value
        return dataclasses.replace(self, **merged)
