"""Predictions for labelled samples, built from a network's scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.detection import count_errors, decode_detections

# Softmax in float16 sums to 1 within 1e-3.
_SUM_TOLERANCE = 2e-3

Floats = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """Predictions for N labelled samples; `build_predictions` makes them.

    Args:
        task: The dataset's task.
        values: The predictions. classification: class indexes, int32 (N,). multi_label: 0 or 1, int32 (N, K).
            regression: float64 with the target's shape. language_model: ids, int32 (N, L). ranking: scores, float64
            (N,). detection: class, score and box, float64 (N, Q, 6).
        target: What is true, with the shape of `values`; detection: class and box, float64 (N, M, 5).
        weight: Each sample's weight, float64 (N,). language_model: times its counted tokens.
        probabilities: float64 (N, K) for classification and multi_label, else None.
        losses: Each sample's loss, float64 (N,): log loss, mean squared error, mean log loss over the tokens, missed
            and wrong boxes; None for ranking.
        hits: Each sample's correct fraction, float64 (N,): 0 or 1, for a language model its tokens' fraction; None for
            regression, ranking and detection.
        groups: Each sample's query, (N,), or None.
    """

    task: str
    values: Array
    target: Array
    weight: Floats
    probabilities: Floats | None = None
    losses: Floats | None = None
    hits: Floats | None = None
    groups: Array | None = None

    def __len__(self) -> int:
        return len(self.target)

    def select(self, rows: NDArray[np.intp]) -> Predictions:
        """Return the predictions for some samples, repeated ones included."""
        return _combine([self], lambda parts: parts[0][rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the predictions for several sample sets with one task as one."""
        return _combine(parts, np.concatenate)


def _combine(parts: Sequence[Predictions], function: Callable[[list[Array]], Array]) -> Predictions:
    """Return predictions whose arrays are computed by a function from the parts' arrays."""
    first = parts[0]
    arrays: dict[str, Any] = {
        field.name: function([getattr(part, field.name) for part in parts])
        for field in dataclasses.fields(first)
        if isinstance(getattr(first, field.name), np.ndarray)
    }
    return dataclasses.replace(first, **arrays)


def build_predictions(
    task: str,
    scores: Array,
    target: Array,
    *,
    weight: Array | None = None,
    groups: Array | None = None,
    labels: Sequence[str] = (),
) -> Predictions:
    """Build a task's predictions from a network's scores.

    Class scores may be probabilities or logits. Rows that are not negative and sum to 1 are probabilities, others are
    logits (softmax). Scores for independent labels, and the single score for two classes, are probabilities if all are
    between 0 and 1, else logits (sigmoid).

    Args:
        task: `classification`, `multi_label`, `regression`, `language_model`, `ranking` or `detection`.
        scores: classification: (N, K), or (N,) or (N, 1) for two classes. multi_label: (N, K). regression: the target's
            shape, or with one more dimension, 1. language_model: (N, L, V) or (N·L, V). ranking: (N,) or (N, 1).
            detection: logits and box, (N, Q, C + 5).
        target: classification: class indexes (N,). multi_label: 0 or 1, (N, K). regression: (N,) or (N, K).
            language_model: ids (N, L), those below 0 are not counted. ranking: relevance (N,), larger is better.
            detection: class and box (N, M, 5), rows with a class below 0 are not counted.
        weight: Weight for each sample, (N,); for a language model also for each token, (N, L). Default 1.
        groups: Each sample's query, (N,), for ranking.
        labels: Class names, or a language model's id texts; id 0 is not counted if it is padding.

    Raises:
        UserError: The task has no predictions, the arrays do not fit together, or a score is NaN or infinite.
    """
    if task not in _BUILDERS:
        raise UserError(f"task {task}: has no metrics, expected {', '.join(_BUILDERS)}")
    scores, target = np.asarray(scores), np.asarray(target)
    if not len(target):
        raise UserError("evaluation: no samples")
    if task == "language_model" and has_padding(labels):
        target = np.where(target == 0, -1, target)
    if scores.dtype.kind not in "fiub":
        raise UserError(f"scores: must be numbers, got {scores.dtype}")
    scores = scores.astype(np.float64)
    # The logit -inf means probability 0.
    finite = np.isfinite(scores) | (np.isneginf(scores) & (task not in ("regression", "ranking")))
    if not finite.all():
        bad = ~finite.reshape(len(scores), -1).all(axis=1)
        raise UserError(
            f"scores: NaN or infinite for {int(bad.sum())} of {len(bad)} rows, first row {int(bad.argmax())}",
            hint="The model is not usable: its training diverged, or its inputs are not scaled as in training.",
        )
    weights = np.ones(len(target)) if weight is None else np.asarray(weight, np.float64)
    if len(weights) != len(target) or (weights < 0).any() or not weights.sum() > 0:
        raise UserError(f"weight: must be {len(target)} numbers from 0 on with a positive sum, got {weights.shape}")
    if groups is not None and np.shape(groups) != (len(target),):
        raise UserError(f"groups: must have shape ({len(target)},), got {np.shape(groups)}")
    return _BUILDERS[task](scores, target, weights, None if groups is None else np.asarray(groups))


def has_padding(labels: Sequence[str]) -> bool:
    """Return whether a language model's id 0 is padding: its text is empty, as in `Tokenize`'s vocabulary."""
    return tuple(labels[:1]) == ("",)


def decode_scores(task: str, scores: Array, labels: Sequence[str] = ()) -> list[Any]:
    """Return one prediction per sample as JSON types: the class, the labels, the number or numbers, or the ids.

    Args:
        task: See `build_predictions`; None per sample for another one.
        scores: See `build_predictions`.
        labels: Class names; a classification without as many returns indexes.
    """
    if task == "classification":
        single = scores.ndim == 1 or scores.shape[1:] == (1,)
        indexes = (_to_independent(scores.reshape(-1)) > 0.5).astype(int) if single else scores.argmax(axis=1)
        classes = 2 if single else scores.shape[1]
        return [labels[index] if len(labels) == classes else index for index in indexes.tolist()]
    if task == "multi_label":
        names = labels if len(labels) == scores.shape[1] else range(scores.shape[1])
        marks = (_to_independent(scores) > 0.5).tolist()
        return [[name for name, marked in zip(names, row, strict=True) if marked] for row in marks]
    if task == "language_model":
        return list(scores.argmax(axis=-1).tolist())
    if task in ("regression", "ranking"):
        return list((scores.reshape(-1) if scores.shape[1:] == (1,) else scores).tolist())
    return [None] * len(scores)


def _build_classification(scores: Floats, target: Array, weight: Floats, groups: Array | None) -> Predictions:
    target = _fit("target", target, (len(target),)).astype(np.int32)
    if scores.ndim == 1 or scores.shape[1:] == (1,):
        positive = _to_independent(_fit("scores", scores, target.shape))
        probabilities = np.stack([1 - positive, positive], axis=1)
    else:
        _check_shape("scores", scores, (len(target), None))
        probabilities = to_distribution(scores)
    classes = probabilities.shape[1]
    if target.min() < 0 or target.max() >= classes:
        raise UserError(f"target: class {target.max()}, but the model has scores for {classes} classes")
    values = probabilities.argmax(axis=1).astype(np.int32)
    losses = _log_loss(probabilities[np.arange(len(target)), target])
    hits = (values == target).astype(np.float64)
    return Predictions("classification", values, target, weight, probabilities, losses, hits, groups)


def _build_multi_label(scores: Floats, target: Array, weight: Floats, groups: Array | None) -> Predictions:
    _check_shape("target", target, (len(scores), None))
    _check_shape("scores", scores, target.shape)
    truth = target.astype(np.int32)
    probabilities = _to_independent(scores)
    values = (probabilities > 0.5).astype(np.int32)
    losses = _log_loss(np.where(truth == 1, probabilities, 1 - probabilities)).mean(axis=1)
    hits = (values == truth).all(axis=1).astype(np.float64)
    return Predictions("multi_label", values, truth, weight, probabilities, losses, hits, groups)


def _build_regression(scores: Floats, target: Array, weight: Floats, groups: Array | None) -> Predictions:
    values = _fit("scores", scores, target.shape)
    losses = np.square(values - target).reshape(len(target), -1).mean(axis=1)
    return Predictions("regression", values, target.astype(np.float64), weight, losses=losses, groups=groups)


def _build_language_model(scores: Floats, target: Array, weight: Floats, groups: Array | None) -> Predictions:
    _check_shape("target", target, (len(target), None))
    if scores.ndim == 2 and len(scores) == target.size:
        scores = scores.reshape(*target.shape, -1)
    _check_shape("scores", scores, (*target.shape, None))
    if target.max() >= scores.shape[2]:
        raise UserError(f"target: id {target.max()}, but the model has scores for {scores.shape[2]} ids")
    counted = (target >= 0) * (weight if weight.ndim == 2 else weight[:, None])
    total = counted.sum(axis=1)
    if not total.sum() > 0:
        raise UserError("target: no token is counted, all ids are below 0 or have weight 0")
    truth = np.maximum(target, 0)[..., None]
    losses = _log_loss(np.take_along_axis(to_distribution(scores), truth, axis=2)[..., 0])
    values = scores.argmax(axis=2).astype(np.int32)
    shares = counted / np.where(total > 0, total, 1)[:, None]
    return Predictions(
        "language_model",
        values,
        target.astype(np.int32),
        total,
        losses=(losses * shares).sum(axis=1),
        hits=((values == target) * shares).sum(axis=1),
        groups=groups,
    )


def _build_ranking(scores: Floats, target: Array, weight: Floats, groups: Array | None) -> Predictions:
    target = _fit("target", target, (len(target),)).astype(np.float64)
    return Predictions("ranking", _fit("scores", scores, target.shape), target, weight, groups=groups)


def _build_detection(scores: Floats, target: Array, weight: Floats, groups: Array | None) -> Predictions:
    if target.ndim != 3 or target.shape[2] != 5:
        raise UserError(f"target: must have shape (N, M, 5), class and box, got {target.shape}")
    values, truth = decode_detections(scores), target.astype(np.float64)
    if truth.size and truth[..., 0].max() >= scores.shape[2] - 5:
        found, classes = int(truth[..., 0].max()), scores.shape[2] - 5
        raise UserError(f"target: class {found}, but the model has scores for {classes} classes")
    return Predictions("detection", values, truth, weight, losses=count_errors(values, truth), groups=groups)


_BUILDERS = {
    "classification": _build_classification,
    "multi_label": _build_multi_label,
    "regression": _build_regression,
    "language_model": _build_language_model,
    "ranking": _build_ranking,
    "detection": _build_detection,
}


def to_distribution(scores: Floats) -> Floats:
    """Return probabilities over the last axis."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=-1), 1, rtol=0, atol=_SUM_TOLERANCE):
        return scores
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    distribution: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return distribution


def _to_independent(scores: Floats) -> Floats:
    if (scores >= 0).all() and (scores <= 1).all():
        return scores
    with np.errstate(over="ignore"):
        probabilities: Floats = 1 / (1 + np.exp(-scores))
    return probabilities


def _log_loss(probabilities: Floats) -> Floats:
    losses: Floats = -np.log(np.maximum(probabilities, np.finfo(np.float64).eps))
    return losses


def _fit(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array with a shape; a last dimension with size 1 is removed or added."""
    if array.shape == shape:
        return array
    if array.shape in ((*shape, 1), shape[:-1] if shape[1:] == (1,) else shape):
        return array.reshape(shape)
    raise UserError(f"{name}: must have shape {shape}, got {array.shape}")


def _check_shape(name: str, array: Array, shape: tuple[int | None, ...]) -> None:
    fits = array.ndim == len(shape) and all(want in (None, size) for want, size in zip(shape, array.shape, strict=True))
    if not fits:
        wanted = ", ".join("K" if size is None else str(size) for size in shape)
        raise UserError(f"{name}: must have shape ({wanted}), got {array.shape}")


def render_lines(indexes: Sequence[int], outputs: Mapping[str, NDArray[Any]], decoded: Sequence[Any]) -> Iterator[str]:
    """Yield each sample's JSON line: index, outputs by name, and the prediction unless it is None."""
    for row, index in enumerate(indexes):
        line = {"index": index, "outputs": {name: array[row].tolist() for name, array in outputs.items()}}
        if decoded[row] is not None:
            line["prediction"] = decoded[row]
        yield json.dumps(line)
