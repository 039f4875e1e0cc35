"""Prediction summaries for reports: confusion matrix, scores by class, calibration, worst samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.predictions import Floats, Predictions


@dataclass(frozen=True)
class ClassScores:
    """Precision and recall for one class; NaN where the denominator is 0.

    Args:
        label: The class.
        count: How many samples it has.
        precision: Fraction of the samples predicted as this class that belong to it.
        recall: Fraction of its samples that were predicted as this class.
    """

    label: str
    count: int
    precision: float
    recall: float


@dataclass(frozen=True)
class Calibration:
    """Accuracy by confidence, in equal-width bins that have samples.

    Args:
        confidence: The predicted class's mean probability in each bin, float64 (B,).
        accuracy: Fraction of correct predictions in each bin, float64 (B,).
        weight: The samples' summed weights in each bin, float64 (B,).
    """

    confidence: Floats
    accuracy: Floats
    weight: Floats


def compute_confusion(predictions: Predictions) -> NDArray[np.int64]:
    """Count the samples by class: int64 (K, K), rows are true classes, columns predicted ones.

    Raises:
        UserError: The task is not classification.
    """
    if predictions.probabilities is None or predictions.task != "classification":
        raise UserError(f"confusion matrix: is for classification, not {predictions.task}")
    classes = predictions.probabilities.shape[1]
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (predictions.target, predictions.values), 1)
    return matrix


def compute_class_scores(labels: Sequence[str], predictions: Predictions) -> list[ClassScores]:
    """Compute precision and recall for each class in a classification, or for each label in a multi-label task.

    Args:
        labels: K names.
        predictions: Predictions for K classes or labels.
    """
    truth, marked = predictions.target, predictions.values
    if predictions.task == "classification":
        classes = np.arange(len(labels))
        truth, marked = truth[:, None] == classes, marked[:, None] == classes
    counts, predicted, hits = truth.sum(axis=0), marked.sum(axis=0), (truth * marked).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = hits / predicted, hits / counts
    return [
        ClassScores(label, int(count), float(share), float(found))
        for label, count, share, found in zip(labels, counts, precision, recall, strict=True)
    ]


def compute_calibration(predictions: Predictions, *, bins: int = 10) -> Calibration:
    """Compute a classifier's calibration curve (Guo et al., 2017, https://arxiv.org/abs/1706.04599).

    Args:
        predictions: A classification's predictions.
        bins: How many equal-width bins between 0 and 1.

    Raises:
        UserError: The task is not classification.
    """
    if predictions.probabilities is None or predictions.hits is None or predictions.task != "classification":
        raise UserError(f"calibration: is for classification, not {predictions.task}")
    confidence = predictions.probabilities.max(axis=1)
    index = np.minimum((confidence * bins).astype(np.intp), bins - 1)
    weight, sums, hits = (
        np.bincount(index, weights=values, minlength=bins).astype(np.float64)
        for values in (predictions.weight, predictions.weight * confidence, predictions.weight * predictions.hits)
    )
    kept = weight > 0
    return Calibration(sums[kept] / weight[kept], hits[kept] / weight[kept], weight[kept])


def list_worst(predictions: Predictions, count: int = 10) -> list[int]:
    """Return the indexes of the samples with the largest losses, worst first; empty for a ranking."""
    if predictions.losses is None:
        return []
    return [int(row) for row in np.argsort(-predictions.losses, kind="stable")[:count]]
