"""The step that selects the best of several models."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp import dsl


def select_best_model(
    models: Sequence[dsl.Model], best: dsl.Model, sources: Sequence[dsl.Artifact], *, metric: str, direction: str = ""
) -> tuple[int, float]:
    """Copy the model with the best metric value, and the metadata.

    Args:
        models: The models.
        best: Output artifact; the model is copied there. The metadata names the copied model.
        sources: Artifacts with the metric in their metadata, in model order.
        metric: Metric name.
        direction: `max` or `min`; empty for the metric's direction.

    Returns:
        The model's index and value; the first among equal ones.

    Raises:
        UserError: An argument is invalid, or no model has the metric.
    """
    from kfp_mindspore.evaluation.metrics import is_maximum

    if not models:
        raise UserError("models: is empty, expected at least one")
    if len(models) != len(sources):
        raise UserError(f"metrics: must be one per model, {len(models)}, got {len(sources)}")
    sign = 1.0 if is_maximum(metric, direction) else -1.0
    values = [_read_value(source, metric, index) for index, source in enumerate(sources)]
    # NaN compares with nothing.
    candidates = [index for index, value in enumerate(values) if not math.isnan(value)]
    if not candidates:
        raise UserError(f"{metric}: no model has a value, all {len(models)} are NaN or missing")
    index = max(candidates, key=lambda candidate: sign * values[candidate])
    chosen, value = models[index], values[index]
    if not Path(chosen.path).is_dir():
        raise UserError(f"models: model {index} has no directory {chosen.path}")
    shutil.copytree(chosen.path, best.path, dirs_exist_ok=True)
    best.metadata.update(chosen.metadata)
    best.metadata.update({metric: value, "selected_from": chosen.uri, "selected_index": index})
    listed = ", ".join(f"{entry:.6g}" for entry in values)
    print(f"model {index} of {len(models)} is the best: {metric} {value:.6g} of {listed}", flush=True)
    return index, value


def _read_value(source: dsl.Artifact, metric: str, index: int) -> float:
    """Return one model's metric; NaN, which evaluation steps do not log, where it is missing."""
    value = source.metadata.get(metric, math.nan)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{metric}: must be a number, got {value!r} of model {index}")
    return float(value)
