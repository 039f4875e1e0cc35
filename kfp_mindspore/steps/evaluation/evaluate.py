"""The steps that evaluate a model bundle and decide the gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kfp_mindspore import events
from kfp_mindspore.errors import UserError
from kfp_mindspore.steps.launch.arguments import parse_numbers

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.mindir.evaluate import Evaluation


class EvaluationOutputs(NamedTuple):
    """evaluate_mindir outputs.

    Args:
        metric: Metric name.
        value: Metric value.
        baseline: The baseline with the best value; empty without one.
        baseline_value: The baseline's value; 0 without one.
        passed: Whether the value reaches the threshold (NaN does not).
        samples: Sample count.
    """

    metric: str
    value: float
    baseline: str
    baseline_value: float
    passed: bool
    samples: int


def evaluate_model(
    bundle: dsl.Model,
    dataset: dsl.Dataset,
    metrics: dsl.Metrics,
    confusion: dsl.ClassificationMetrics,
    report: dsl.HTML,
    *,
    metric: str = "",
    threshold: float | None = None,
    split: str = "test",
    beat_baseline: bool = False,
    device: str = "auto",
) -> EvaluationOutputs:
    """Evaluate a bundle on a held-out split, log the results and emit the gate's decision.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        metrics: Receives the task metrics, the best baseline's as `baseline.<metric>`, threshold, samples, and
            `recall.<class>` for each class in the split.
        confusion: Receives a classification's confusion matrix.
        report: Receives the HTML page.
        metric: Gate metric; empty for the task's default.
        threshold: Metric value that passes, or a better one; None without a gate.
        split: The dataset's split to evaluate on.
        beat_baseline: Whether the baseline's metric is the threshold, unless `threshold` is stricter.
        device: See `kfp_mindspore.mindir.devices.DeviceOptions`.

    Raises:
        UserError: The threshold is outside the metric's range, or bundle, dataset and metric do not fit together.
    """
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.evaluation import compute_confusion, get_metric
    from kfp_mindspore.evaluation.metrics import check_threshold
    from kfp_mindspore.evaluation.summaries import compute_class_scores
    from kfp_mindspore.formats.dataset import Dataset
    from kfp_mindspore.mindir import evaluate_bundle
    from kfp_mindspore.mindir.evaluate import add_baselines
    from kfp_mindspore.steps.evaluation.reports import render_evaluation

    opened = Dataset.open(dataset.path)
    check_threshold(metric, threshold, task=opened.task)
    import_mindspore()
    evaluation = evaluate_bundle(bundle.path, dataset.path, split=split, metric=metric, device=device)
    evaluation = add_baselines(evaluation, opened, split)
    name, value = evaluation.metric, evaluation.value
    baseline = evaluation.baselines.get(evaluation.baseline, {})
    if beat_baseline:
        threshold = _get_baseline_threshold(evaluation, threshold)
    passed = get_metric(name).is_met(value, threshold)
    _report_gate(name, value, threshold, passed)
    for title, found in evaluation.baselines.items():
        print(f"baseline {title}: {name} {found[name]:.6g}", flush=True)
    logged = {**evaluation.metrics, "samples": evaluation.count}
    logged |= {f"baseline.{key}": number for key, number in baseline.items()}
    if threshold is not None:
        logged["threshold"] = threshold
    if evaluation.predictions.probabilities is not None:
        for row in compute_class_scores(evaluation.labels, evaluation.predictions):
            logged[f"recall.{row.label}"] = round(row.recall, 6)
    for key, number in logged.items():
        if not math.isnan(number):
            metrics.log_metric(key, number)
    if evaluation.task == "classification":
        confusion.log_confusion_matrix(list(evaluation.labels), compute_confusion(evaluation.predictions).tolist())
    arrays = opened.read_columns(split)
    columns = {column.name: arrays[column.name] for column in opened.list_columns("feature")}
    page = render_evaluation(evaluation, threshold, columns)
    Path(report.path).write_text(page, encoding="utf-8")
    return EvaluationOutputs(name, value, evaluation.baseline, baseline.get(name, 0.0), passed, evaluation.count)


def evaluate_by_function(
    bundle: dsl.Model,
    metrics: dsl.Metrics,
    *,
    function: str,
    arguments: Mapping[str, Any],
    threshold: float | None = None,
    lower_is_better: bool = False,
) -> tuple[str, float, bool]:
    """Evaluate a bundle by a function, log the metrics and emit the gate's decision by the first one.

    Args:
        bundle: The model bundle.
        metrics: Receives the metrics and the threshold; NaN is not logged.
        function: `module:callable` called with a ModelRunner and the arguments, which returns numbers by name.
        arguments: The function's keyword arguments.
        threshold: First metric's value that passes, or a better one; None without a gate.
        lower_is_better: Whether the threshold is a maximum.

    Returns:
        The first metric's name and value, and whether it reaches the threshold (NaN does not).

    Raises:
        UserError: The function is missing, or does not return numbers by name.
    """
    from kfp_mindspore import mindir
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.mindir.parameters.network import import_callable

    import_mindspore()
    call = import_callable(function, "function")
    with mindir.ModelRunner(bundle.path) as runner:
        result = call(runner, **parse_numbers(arguments))
    if not isinstance(result, Mapping) or not result or not all(map(_is_number, result.values())):
        raise UserError(f"function {function!r}: must return numbers by name, got {result!r}")
    values = {str(name): float(number) for name, number in result.items()}
    name, value = next(iter(values.items()))
    passed = threshold is None or (value <= threshold if lower_is_better else value >= threshold)
    _report_gate(name, value, threshold, passed)
    for key, number in (values if threshold is None else {**values, "threshold": threshold}).items():
        if not math.isnan(number):
            metrics.log_metric(key, number)
    return name, value, passed


def _get_baseline_threshold(evaluation: Evaluation, threshold: float | None) -> float:
    from kfp_mindspore.evaluation import get_metric

    if not evaluation.baseline:
        raise UserError(f"beat_baseline: the task {evaluation.task} has no baseline on this dataset")
    found = evaluation.baselines[evaluation.baseline][evaluation.metric]
    if threshold is None:
        return found
    return max(found, threshold) if get_metric(evaluation.metric).higher_is_better else min(found, threshold)


def _report_gate(metric: str, value: float, threshold: float | None, passed: bool) -> None:
    """Emit the gate's decision, and print it for the step's log."""
    events.emit("gate", metric, metric=metric, value=value, threshold=threshold, passed=passed)
    verdict = "no threshold" if threshold is None else f"threshold {threshold:g}: {'passed' if passed else 'not met'}"
    print(f"{metric} {value:.6g}, {verdict}", flush=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
