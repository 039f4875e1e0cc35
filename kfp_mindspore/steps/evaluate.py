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
    threshold: float = 0.0,
    split: str = "test",
) -> tuple[float, bool, int]:
    """Evaluate a bundle on a held-out split, log the results and emit the gate's decision.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        metrics: Receives accuracy, threshold, test_images, and `recall.<class>` of each class in the split.
        confusion: Receives the confusion matrix.
        report: Receives the HTML page.
        threshold: Minimum accuracy that passes, 0 to 1.
        split: Split of the dataset to evaluate on.

    Returns:
        Accuracy, whether it reaches the threshold (NaN does not), and the number of samples.
    """
    from kfp_mindspore.mindir import evaluate_bundle
    from kfp_mindspore.steps.reports import compute_class_scores, render_evaluation

    evaluation = evaluate_bundle(bundle.path, dataset.path, split=split)
    passed = evaluation.accuracy >= threshold
    events.emit("gate", "accuracy", metric="accuracy", value=evaluation.accuracy, threshold=threshold, passed=passed)
    metrics.log_metric("accuracy", evaluation.accuracy)
    metrics.log_metric("threshold", threshold)
    metrics.log_metric("test_images", evaluation.count)
    matrix = evaluation.confusion.tolist()
    for row in compute_class_scores(evaluation.labels, matrix):
        if not math.isnan(row.recall):
            metrics.log_metric(f"recall.{row.label}", round(row.recall, 6))
    confusion.log_confusion_matrix(list(evaluation.labels), matrix)
    page = render_evaluation(evaluation.labels, matrix, evaluation.accuracy, threshold)
    Path(report.path).write_text(page, encoding="utf-8")
    return evaluation.accuracy, passed, evaluation.count
