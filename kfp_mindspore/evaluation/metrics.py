"""The table of metrics: each metric's tasks, direction, range and function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError, ValidationError, suggest
from kfp_mindspore.evaluation.detection import compute_average_precision
from kfp_mindspore.evaluation.predictions import Floats, Predictions
from kfp_mindspore.evaluation.summaries import compute_calibration

_DEFAULT_CUTOFF = 10
_BINS = 10

MAXIMUM, MINIMUM = "max", "min"


@dataclass(frozen=True)
class Metric:
    """A metric of predictions.

    A metric has either `compute`, or `per_unit` with an optional `finish`: the metric is then the finished weighted
    mean over samples or groups.

    Args:
        name: Metric name.
        description: One phrase.
        tasks: Tasks that it is defined for.
        higher_is_better: Its direction.
        low: Least possible value; -inf without one.
        high: Greatest possible value; inf without one.
        compute: Computes the metric value.
        per_unit: The samples' values and weights, or the values and weights for a ranking's groups, each (U,).
        finish: Function applied to the weighted mean, such as a square root.
    """

    name: str
    description: str
    tasks: tuple[str, ...]
    higher_is_better: bool
    low: float
    high: float
    compute: Callable[[Predictions], float] | None = None
    per_unit: Callable[[Predictions], tuple[Floats, Floats]] | None = None
    finish: Callable[[float], float] = float

    def __call__(self, predictions: Predictions) -> float:
        """Return the metric of the predictions.

        Raises:
            UserError: The metric is not defined for the task or the samples.
        """
        if predictions.task not in self.tasks:
            raise UserError(_describe_task_mismatch(self, predictions.task))
        if self.per_unit is not None:
            values, weights = self.per_unit(predictions)
            return self.finish(float(np.average(values, weights=weights)))
        assert self.compute is not None
        return float(self.compute(predictions))

    def describe_range(self) -> str:
        """Return the range as text, such as `0 to 1` or `at least 0`."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{self.low:g} to {self.high:g}"
        return f"at least {self.low:g}" if math.isfinite(self.low) else f"at most {self.high:g}"

    def is_met(self, value: float, threshold: float | None) -> bool:
        """Return whether a value reaches a threshold in the metric's direction; NaN does not, None always."""
        if threshold is None:
            return True
        return value >= threshold if self.higher_is_better else value <= threshold


def get_metric(name: str, task: str = "") -> Metric:
    """Return a metric by name.

    Args:
        name: Metric name; `ndcg@5` for another cutoff than 10. Empty for the task's default metric.
        task: Task that the metric must be defined for; empty for any.

    Raises:
        UserError: No metric has this name, or it is not defined for the task.
    """
    if not name:
        if task not in _DEFAULTS:
            raise UserError(f"task {task or 'none'}: has no metrics, expected {', '.join(_DEFAULTS)}")
        name = _DEFAULTS[task]
    metric = METRICS.get(name)
    if metric is None and (cutoff := re.fullmatch(r"ndcg@([1-9]\d*)", name)):
        metric = _build_ndcg(int(cutoff.group(1)))
    if metric is None:
        known = [known for known, entry in METRICS.items() if task in ("", *entry.tasks)]
        raise UserError(f"metric {name!r}: unknown{suggest(name, known)}")
    if task and task not in metric.tasks:
        raise UserError(_describe_task_mismatch(metric, task))
    return metric


def check_threshold(metric: str, threshold: float | None, *, task: str = "", subject: str = "") -> None:
    """Refuse a threshold that lies outside the metric's range, and a metric that does not exist.

    Args:
        metric: Metric name; empty for the task's default metric.
        threshold: The threshold; None for no gate.
        task: The dataset's task; empty where it is not known: one default metric must have the threshold in its range.
        subject: Step or run name in the message.

    Raises:
        ValidationError: The message names metric, range and threshold.
        UserError: There is no such metric.
    """
    names = [metric] if metric or task else list(_DEFAULTS.values())
    possible = [get_metric(name, task) for name in names]
    if threshold is None or any(found.low <= threshold <= found.high for found in possible):
        return
    wanted = " or ".join(f"{found.describe_range()}, the range of {found.name}" for found in possible)
    raise ValidationError([f"threshold: must be {wanted}, got {threshold:g}"], subject=subject)


def is_maximum(metric: str, direction: str = "") -> bool:
    """Return whether a metric's largest value is the best.

    Args:
        metric: Metric name.
        direction: `max` or `min`; empty for the metric's direction.

    Raises:
        UserError: The direction is neither, or empty for a metric that does not exist.
    """
    if direction not in ("", MAXIMUM, MINIMUM):
        raise UserError(f"direction: must be {MAXIMUM} or {MINIMUM}, got {direction!r}")
    if direction:
        return direction == MAXIMUM
    try:
        return get_metric(metric).higher_is_better
    except UserError as error:
        raise UserError(error.message, hint=f"Give the direction of another metric: {MAXIMUM} or {MINIMUM}.") from None


def compute_metrics(predictions: Predictions) -> dict[str, float]:
    """Compute all metrics for the predictions' task, NaN where one is not defined for these samples."""
    found = {}
    for name, metric in METRICS.items():
        if predictions.task in metric.tasks:
            try:
                found[name] = metric(predictions)
            except UndefinedMetricError:
                found[name] = math.nan
    return found


class UndefinedMetricError(UserError):
    """A metric that is not defined for the given samples, such as ROC-AUC with one class."""


def _describe_task_mismatch(metric: Metric, task: str) -> str:
    fitting = ", ".join(name for name, entry in METRICS.items() if task in entry.tasks)
    return f"metric {metric.name}: is for {' and '.join(metric.tasks)}, not {task}; expected {fitting or 'no metric'}"


def _average_losses(predictions: Predictions) -> tuple[Floats, Floats]:
    assert predictions.losses is not None
    return predictions.losses, predictions.weight


def _average_hits(predictions: Predictions) -> tuple[Floats, Floats]:
    assert predictions.hits is not None
    return predictions.hits, predictions.weight


def _average_absolute_errors(predictions: Predictions) -> tuple[Floats, Floats]:
    errors = np.abs(predictions.values - predictions.target).reshape(len(predictions), -1)
    return errors.mean(axis=1), predictions.weight


def _compute_balanced_accuracy(predictions: Predictions) -> float:
    _, truth = np.unique(predictions.target, return_inverse=True)
    total = np.bincount(truth, predictions.weight)
    correct = np.bincount(truth, predictions.weight * (predictions.values == predictions.target))
    return float(np.mean(_divide(correct, total)))


def _compute_f1(predictions: Predictions) -> float:
    """Return the classes' mean F1 score; 0 for a class that is neither true nor predicted."""
    values, target = predictions.values, predictions.target
    if predictions.task == "classification":
        classes = np.unique([target, values])
        values, target = values[:, None] == classes, target[:, None] == classes
    weight = predictions.weight[:, None]
    correct = (weight * (values * target)).sum(axis=0)
    return float(np.mean(_divide(2 * correct, (weight * values).sum(axis=0) + (weight * target).sum(axis=0))))


def _divide(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Return part / whole, 0 where the whole is 0."""
    quotient: Floats = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return quotient


def _compute_r2(predictions: Predictions) -> float:
    """Return R², mean over the target's columns; a constant column has 1 if it is predicted exactly, else 0."""
    if len(predictions) < 2:
        raise UndefinedMetricError("r2: needs two samples")
    weight = predictions.weight[:, None]
    target = predictions.target.reshape(len(predictions), -1)
    mean = np.average(target, axis=0, weights=predictions.weight)
    residual = (weight * np.square(target - predictions.values.reshape(target.shape))).sum(axis=0)
    total = (weight * np.square(target - mean)).sum(axis=0)
    unexplained = np.divide(residual, total, out=(residual > 0).astype(np.float64), where=total > 0)
    return float(np.mean(1 - unexplained))


def _compute_roc_auc(predictions: Predictions) -> float:
    """Return the mean area for one class against the others; classes without or with all samples are not counted."""
    scores: NDArray[Any]
    if predictions.task == "ranking":
        scores, truth = predictions.values[:, None], (predictions.target > 0)[:, None]
    else:
        assert predictions.probabilities is not None
        scores, truth = predictions.probabilities, predictions.target
        if predictions.task == "classification":
            truth = truth[:, None] == np.arange(scores.shape[1])
            if scores.shape[1] == 2:
                scores, truth = scores[:, 1:], truth[:, 1:]
    areas = [_compute_area(truth[:, column], scores[:, column], predictions.weight) for column in range(truth.shape[1])]
    found = [area for area in areas if area is not None]
    if not found:
        raise UndefinedMetricError("roc_auc: needs samples of two classes; for a ranking, relevance 0 and above 0")
    return float(np.mean(found))


def _compute_area(truth: NDArray[Any], scores: NDArray[Any], weight: Floats) -> float | None:
    """Return the weighted share of pairs in which the true sample has the higher score; equal scores count half."""
    _, rank = np.unique(scores, return_inverse=True)
    positive = np.bincount(rank, weight * truth)
    negative = np.bincount(rank, weight * (1 - truth))
    pairs = positive.sum() * negative.sum()
    return float(np.sum(positive * (np.cumsum(negative) - negative / 2)) / pairs) if pairs > 0 else None


def _compute_calibration_error(predictions: Predictions) -> float:
    bins = compute_calibration(predictions, bins=_BINS)
    return float(np.sum(bins.weight * np.abs(bins.accuracy - bins.confidence)) / np.sum(bins.weight))


def _build_ndcg(cutoff: int) -> Metric:
    """Return NDCG at a cutoff: the mean over the groups that have two samples and a relevant one."""

    def per_group(predictions: Predictions) -> tuple[Floats, Floats]:
        values = []
        for rows in list_groups(predictions):
            relevance = predictions.target[rows]
            if len(rows) > 1 and relevance.max() > 0:
                values.append(_compute_ndcg(relevance, predictions.values[rows], cutoff))
            else:
                values.append(math.nan)
        scores = np.array(values)
        if np.isnan(scores).all():
            raise UndefinedMetricError(f"ndcg@{cutoff}: needs a group of two samples with relevance above 0")
        return np.nan_to_num(scores), (~np.isnan(scores)).astype(np.float64)

    return Metric(
        f"ndcg@{cutoff}",
        f"normalised discounted cumulative gain of the first {cutoff}, mean over the groups",
        ("ranking",),
        True,
        0,
        1,
        per_unit=per_group,
    )


def _compute_ndcg(relevance: Floats, scores: Floats, cutoff: int) -> float:
    discounts = 1 / np.log2(np.arange(2, len(scores) + 2))
    discounts[cutoff:] = 0
    # Samples with equal scores share the mean of their places' discounts.
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    shared = np.add.reduceat(discounts, np.cumsum(sizes) - sizes) / sizes
    gain: float = np.dot(relevance, shared[group])
    best: float = np.dot(np.sort(relevance)[::-1], discounts)
    return gain / best


def list_groups(predictions: Predictions) -> list[NDArray[np.intp]]:
    """Return each group's rows in a ranking; all rows are one group without groups."""
    if predictions.groups is None:
        return [np.arange(len(predictions))]
    order = np.argsort(predictions.groups, kind="stable")
    _, starts = np.unique(predictions.groups[order], return_index=True)
    return np.split(order, starts[1:])


def _average_precision(predictions: Predictions, thresholds: int) -> float:
    """Return the mean over classes and the first thresholds."""
    classes = int(predictions.target[..., 0].max(initial=-1)) + 1
    if not classes:
        raise UndefinedMetricError("map50: needs a box")
    found = compute_average_precision(predictions.values, predictions.target, classes)
    return float(np.nanmean(found[:thresholds]))


_HIT_TASKS = ("classification", "multi_label", "language_model")
_SCORE_TASKS = ("classification", "multi_label")
_AUC_TASKS = ("classification", "multi_label", "ranking")
_ALL = (
    Metric("accuracy", "fraction of correct predictions", _HIT_TASKS, True, 0, 1, per_unit=_average_hits),
    Metric(
        "balanced_accuracy", "mean recall of the classes", ("classification",), True, 0, 1, _compute_balanced_accuracy
    ),
    Metric("f1_macro", "mean F1 score of the classes", _SCORE_TASKS, True, 0, 1, _compute_f1),
    Metric(
        "roc_auc",
        "area under the ROC curve, mean of one class against the others",
        _AUC_TASKS,
        True,
        0,
        1,
        _compute_roc_auc,
    ),
    Metric(
        "log_loss",
        "mean negative log probability of the truth",
        _SCORE_TASKS,
        False,
        0,
        math.inf,
        per_unit=_average_losses,
    ),
    Metric(
        "calibration_error",
        "mean difference of confidence and accuracy in ten bins",
        ("classification",),
        False,
        0,
        1,
        _compute_calibration_error,
    ),
    Metric("mae", "mean absolute error", ("regression",), False, 0, math.inf, per_unit=_average_absolute_errors),
    Metric(
        "rmse",
        "root mean squared error",
        ("regression",),
        False,
        0,
        math.inf,
        per_unit=_average_losses,
        finish=math.sqrt,
    ),
    Metric("r2", "coefficient of determination", ("regression",), True, -math.inf, 1, _compute_r2),
    Metric(
        "loss",
        "mean negative log probability of a token, in nats",
        ("language_model",),
        False,
        0,
        math.inf,
        per_unit=_average_losses,
    ),
    Metric(
        "perplexity",
        "exponential of the loss",
        ("language_model",),
        False,
        1,
        math.inf,
        per_unit=_average_losses,
        finish=math.exp,
    ),
    _build_ndcg(_DEFAULT_CUTOFF),
    Metric(
        "map50",
        "average precision of boxes with an overlap of 0.5, mean over the classes",
        ("detection",),
        True,
        0,
        1,
        partial(_average_precision, thresholds=1),
    ),
    Metric(
        "map50_95",
        "mean of the average precisions with overlaps from 0.5 to 0.95, as COCO's",
        ("detection",),
        True,
        0,
        1,
        partial(_average_precision, thresholds=10),
    ),
)
METRICS = {metric.name: metric for metric in _ALL}
_DEFAULTS = {
    "classification": "accuracy",
    "multi_label": "f1_macro",
    "regression": "rmse",
    "language_model": "perplexity",
    "ranking": f"ndcg@{_DEFAULT_CUTOFF}",
    "detection": "map50",
}
