"""The step that compresses a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore import events

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.compression.options import CompressionOptions


class CompressionOutputs(NamedTuple):
    """compress_model outputs.

    Args:
        passed: Whether the metric lost no more than allowed.
        pruned: Fraction of parameters that was cut.
        metric: Metric name.
        value: The compressed network's metric.
        lost: How much worse it is.
    """

    passed: bool
    pruned: float
    metric: str
    value: float
    lost: float


def compress_checkpoint(
    model: dsl.Model,
    dataset: dsl.Dataset,
    compressed: dsl.Model,
    metrics: dsl.Metrics,
    report: dsl.HTML,
    options: CompressionOptions,
    *,
    augment: str = "",
) -> CompressionOutputs:
    """Compress a model's checkpoint, log sizes and emit the gate's decision.

    Args:
        model: A training step's output, whose `checkpoint/` is compressed.
        dataset: The dataset directory that it was trained on.
        compressed: Receives the compressed checkpoint and the report.
        metrics: Receives sizes before and after, and the metric.
        report: Receives the HTML page.
        options: The options.
        augment: `module:function` of the training's augmentation; empty for none.

    Raises:
        UserError: The checkpoint and the dataset do not fit together.
    """
    from kfp_mindspore.compression import compress
    from kfp_mindspore.compression.result import Round
    from kfp_mindspore.evaluation import get_metric
    from kfp_mindspore.mindir.parameters.network import import_callable

    def print_round(found: Round) -> None:
        state = "passed" if found.passed else "gate not met"
        print(f"{found.pruned:.1%} of the {options.target} cut: {found.value:.6g}, {state}", flush=True)

    result = compress(
        f"{model.path}/checkpoint",
        dataset.path,
        compressed.path,
        options,
        augment=import_callable(augment, "augment") if augment else None,
        on_round=print_round,
        strict=False,
    )
    sign = 1 if get_metric(result.metric).higher_is_better else -1
    threshold = result.value_before - sign * options.max_accuracy_lost
    events.emit(
        "gate", result.metric, metric=result.metric, value=result.value, threshold=threshold, passed=result.passed
    )
    for name in ("parameters", "flops", "bytes"):
        metrics.log_metric(f"{name}_before", getattr(result.before, name))
        metrics.log_metric(name, getattr(result.after, name))
    for batch, seconds in result.after.latency.items():
        if not result.speedups[batch].is_reliable:
            print(f"latency at batch {batch} is not logged: {result.speedups[batch].describe()}", flush=True)
            continue
        metrics.log_metric(f"latency_before.{batch}", result.before.latency[batch])
        metrics.log_metric(f"latency.{batch}", seconds)
    metrics.log_metric(f"{result.metric}_before", result.value_before)
    metrics.log_metric(result.metric, result.value)
    compressed.metadata.update(framework="mindspore", pruned=result.pruned, weights=options.weights)
    shutil.copyfile(result.report, Path(report.path))
    return CompressionOutputs(result.passed, result.pruned, result.metric, result.value, result.lost)
