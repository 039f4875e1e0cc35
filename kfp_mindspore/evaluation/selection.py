"""Active learning: selection of the unlabelled samples whose labels improve a model most."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.predictions import build_predictions

STRATEGIES = ("entropy", "margin", "k_centre", "random")


def check_strategy(strategy: str) -> None:
    """Refuse an unknown strategy.

    Raises:
        UserError: The strategy is not in `STRATEGIES`.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"strategy: must be one of {', '.join(STRATEGIES)}, got {strategy!r}")


def select_samples(
    scores: NDArray[Any],
    count: int,
    *,
    strategy: str = "margin",
    labelled: NDArray[Any] | None = None,
    seed: int = 42,
) -> NDArray[np.intp]:
    """Return the indexes of the samples to label next.

    `entropy` selects the samples with the highest entropy over predicted classes, `margin` the samples with the
    smallest difference between the two highest probabilities (Scheffer et al., 2001). `k_centre` selects greedily the
    sample that is farthest, by Euclidean distance between scores, from all labelled and selected ones (Sener and
    Savarese, 2018). `random` is the baseline.

    Args:
        scores: The unlabelled samples' scores, (N, K): probabilities or logits for classification. For `k_centre` any
            features, such as a hidden layer's outputs; for `random` only their count matters.
        count: Samples to select; all when there are fewer.
        strategy: A name in `STRATEGIES`.
        labelled: The labelled samples' scores or features, (M, K), for `k_centre`.
        seed: Seed for `random`, and for the order among equal samples.

    Returns:
        Indexes into `scores`, best first, int64 with shape (min(count, N),).

    Raises:
        UserError: The strategy is unknown, the count is below 1, or the scores do not fit the strategy.
    """
    check_strategy(strategy)
    if count < 1:
        raise UserError(f"count: must be at least 1, got {count}")
    scores = np.asarray(scores)
    if scores.ndim != 2:
        raise UserError(f"scores: must have shape (N, K), got {scores.shape}")
    if not len(scores):
        return np.empty(0, np.intp)
    order = np.random.default_rng(seed).permutation(len(scores))
    if strategy == "random":
        return order[:count]
    if strategy == "k_centre":
        return order[_select_centres(scores[order], count, labelled)]
    if scores.shape[1] < 2:
        raise UserError(f"scores: {strategy} needs one per class, at least 2, got shape {scores.shape}")
    probabilities = build_predictions("classification", scores, np.zeros(len(scores), np.int32)).probabilities
    assert probabilities is not None
    if strategy == "entropy":
        certainty = (probabilities * np.log(np.maximum(probabilities, np.finfo(float).tiny))).sum(axis=1)
    else:
        second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
        certainty = first - second
    selected: NDArray[np.intp] = order[np.argsort(certainty[order], kind="stable")[:count]]
    return selected


def _select_centres(points: NDArray[Any], count: int, labelled: NDArray[Any] | None) -> NDArray[np.intp]:
    """Return the greedy 2-approximation to the k-centre problem; without labelled samples it begins at the mean."""
    points = points.astype(np.float64)
    centres = points.mean(axis=0, keepdims=True) if labelled is None or not len(labelled) else np.asarray(labelled)
    if centres.shape[1:] != points.shape[1:]:
        raise UserError(f"labelled: must have shape (M, {points.shape[1]}), got {centres.shape}")
    distance = np.full(len(points), np.inf)
    for centre in centres:
        distance = np.minimum(distance, ((points - centre) ** 2).sum(axis=1))
    selected = []
    for _ in range(min(count, len(points))):
        selected.append(int(distance.argmax()))
        distance = np.minimum(distance, ((points - points[selected[-1]]) ** 2).sum(axis=1))
        distance[selected[-1]] = -1.0
    return np.array(selected, np.intp)
