"""The step that evaluates a model bundle and decides its gate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore import events

if TYPE_CHECKING:
    from kfp import dsl


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
) -> tuple[str, float, bool, int]:
    """Evaluate a bundle on a held-out split, log the results and emit the gate's decision.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        metrics: Receives the metrics of the task, threshold, samples, and `recall.<class>` of each class in the split.
        confusion: Receives the confusion matrix of a classification.
        report: Receives the HTML page.
        metric: Metric of the gate; empty for the default of the task.
        threshold: Value of the metric that passes, or a better one; None for no gate.
        split: Split of the dataset to evaluate on.

    Returns:
        Name and value of the metric, whether it reaches the threshold (NaN does not), and the number of samples.

    Raises:
        UserError: The threshold is outside the metric's range, or bundle, dataset and metric do not fit together.
    """
    from kfp_mindspore.evaluation import compute_confusion, get_metric
    from kfp_mindspore.evaluation.metrics import check_threshold
    from kfp_mindspore.evaluation.summaries import compute_class_scores
    from kfp_mindspore.formats.dataset import Dataset
    from kfp_mindspore.mindir import evaluate_bundle
    from kfp_mindspore.steps.reports import render_evaluation

    opened = Dataset.open(dataset.path)
    check_threshold(metric, threshold, task=opened.task)
    evaluation = evaluate_bundle(bundle.path, dataset.path, split=split, metric=metric)
    name, value = evaluation.metric, evaluation.value
    passed = get_metric(name).is_met(value, threshold)
    events.emit("gate", name, metric=name, value=value, threshold=threshold, passed=passed)
    logged = {**evaluation.metrics, "samples": evaluation.count}
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
    return name, value, passed, evaluation.count
