"""Progress reports from worker 0, read from a file or its log. Programs other than `fit` may write them too."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_mindspore.msjob.api.manifest import deserialize
from kfp_mindspore.msjob.api.status import ProgressMetric, TrainingProgress
from kfp_mindspore.settings import PROGRESS_PREFIX

_MAXIMUM_METRICS = 50
_MAXIMUM_TEXT = 100
_MAXIMUM_NUMBER = 2**53


def read_last_progress(lines: Iterable[str]) -> TrainingProgress | None:
    """Return the newest valid report among a log's lines, or None."""
    found = None
    for line in lines:
        if line.startswith(PROGRESS_PREFIX):
            found = parse_progress(line.removeprefix(PROGRESS_PREFIX)) or found
    return found


def format_line(line: str) -> str:
    """Return a log line; a valid report becomes text such as `progress: 45 %, epoch 5/10, loss 0.31`."""
    if not line.startswith(PROGRESS_PREFIX):
        return line
    progress = parse_progress(line.removeprefix(PROGRESS_PREFIX))
    return line if progress is None else f"progress: {describe_progress(progress)}"


def describe_progress(progress: TrainingProgress) -> str:
    """Return a progress report as text: `45 %, epoch 5/10, step 450/1000, 2:00:00 left, loss 0.31`."""
    parts = [] if progress.percentage is None else [f"{progress.percentage} %"]
    for name, done, total in (("epoch", progress.epoch, progress.epochs), ("step", progress.step, progress.steps)):
        if done is not None:
            parts.append(f"{name} {done}" + (f"/{total}" if total is not None else ""))
    if seconds := progress.estimated_remaining_seconds:
        parts.append(f"about {datetime.timedelta(seconds=seconds)} left")
    if progress.device:
        parts.append(f"device {progress.device}")
    return ", ".join([*parts, *(f"{metric.name} {metric.value}" for metric in progress.metrics)])


def parse_progress(text: str | bytes) -> TrainingProgress | None:
    """Parse a report, a JSON object with `TrainingProgress` fields; None for an invalid one.

    A report comes from a job's own process: the API server must accept the status to which it is added.
    """
    try:
        document = json.loads(text)
        fields: dict[str, Any] = deserialize(TrainingProgress, document)
        metrics = [ProgressMetric(item["name"], item["value"]) for item in fields.pop("metrics", ())]
    except (TypeError, ValueError, KeyError):
        return None
    if not isinstance(document, Mapping) or len(metrics) > _MAXIMUM_METRICS:
        return None
    if not all(_is_text(metric.name) and _is_text(metric.value) for metric in metrics):
        return None
    fields = {name: value for name, value in fields.items() if value is not None}
    device = fields.pop("device", None)
    if device is not None and not _is_text(device):
        return None
    if not all(type(value) is int and 0 <= value <= _MAXIMUM_NUMBER for value in fields.values()):
        return None
    progress = TrainingProgress(**fields, device=device, metrics=metrics)
    return None if (progress.percentage or 0) > 100 else progress


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAXIMUM_TEXT
