"""Baselines of a dataset: what a constant and a linear model predict on the same splits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.evaluation.predictions import Predictions, build_predictions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.data.samples import Samples

TASKS = ("classification", "regression")
# Numbers in the training matrix: a fit takes about a second.
_MOST_NUMBERS = 2_000_000
_MOST_FEATURES = 4096
# Different indexes of a vocabulary that become one-hot vectors.
_MOST_INDEXES = 100
_ITERATIONS = 200
_TOLERANCE = 1e-3
# Texts of the fit, and terms of one column: a fit takes about a second.
_MOST_TEXTS = 20_000
_MOST_TERMS = 50_000
# Vectors of TF-IDF have length 1, so scikit-learn's default of 1 regularises too much.
_TEXT_C = 10.0


def compute_baselines(
    task: str,
    train: Samples,
    held_out: Samples,
    *,
    labels: tuple[str, ...] = (),
    texts: Mapping[str, str] | None = None,
) -> dict[str, Predictions]:
    """Return the predictions of baselines for held-out samples, by the baseline's name.

    A regression has the training split's mean and ridge regression, a classification the class frequencies and logistic
    regression. Linear models get all inputs, as the network does, and at most 2,000,000 of their numbers.
    Texts become TF-IDF vectors (words and word pairs, or one to three characters), for at most 20,000 samples.

    Args:
        task: The dataset's task.
        train: The training split.
        held_out: The samples to predict.
        labels: Class names.
        texts: Columns whose texts become token ids, by name: `words` or `characters`.

    Returns:
        The predictions; without linear ones where the inputs are too wide or, with texts, scikit-learn is not
        installed; empty for another task and without targets.
    """
    if task not in TASKS or train.target is None or held_out.target is None:
        return {}
    scores = {"class frequencies" if task == "classification" else "mean": _repeat(task, train, held_out, labels)}
    linear = _fit_linear(task, train, held_out, labels, texts or {})
    if linear is not None:
        name = "logistic regression" if task == "classification" else "ridge regression"
        scores[f"TF-IDF and {name}" if texts else name] = linear
    return {
        name: build_predictions(task, array, held_out.target, weight=held_out.weight, labels=labels)
        for name, array in scores.items()
    }


def _repeat(task: str, train: Samples, held_out: Samples, labels: tuple[str, ...]) -> NDArray[Any]:
    """Return the training split's mean, or the class frequencies, for each held-out sample."""
    target = np.asarray(train.target)
    if task == "classification":
        target = (target[:, np.newaxis] == np.arange(len(labels))).astype(np.float64)
    mean = np.average(target, axis=0, weights=train.weight)
    return np.broadcast_to(mean, (len(held_out), *np.shape(mean))).copy()


def _fit_linear(
    task: str, train: Samples, held_out: Samples, labels: tuple[str, ...], texts: Mapping[str, str]
) -> NDArray[Any] | None:
    """Return a linear model's scores; None where it cannot be fitted."""
    numbers = {name: array for name, array in train.inputs.items() if name not in texts}
    width = sum(math.prod(array.shape[1:]) for array in numbers.values())
    if width > _MOST_FEATURES:
        return None
    rows, chosen = max(1, _MOST_NUMBERS // max(1, width)), np.arange(len(train))
    if texts:
        rows = min(rows, _MOST_TEXTS)
    if len(train) > rows:
        chosen = np.sort(np.random.default_rng(0).choice(len(train), rows, replace=False))
    features = _stack(
        {name: array[chosen] for name, array in numbers.items()}, held_out.inputs, len(chosen) + len(held_out)
    )
    if features is None:
        return None
    known, unknown = features[: len(chosen)], features[len(chosen) :]
    mean, std = known.mean(axis=0), known.std(axis=0)
    known, unknown = ((part - mean) / np.where(std > 0, std, 1) for part in (known, unknown))
    if texts and find_spec("sklearn") is None:
        return None
    for name, unit in texts.items():
        known, unknown = _append_terms(unit, (known, unknown), (train.raw[name][chosen], held_out.raw[name]))
    target = np.asarray(train.target)[chosen]
    weight = None if train.weight is None else train.weight[chosen]
    if task == "regression" and texts:
        from sklearn.linear_model import Ridge

        ridge = Ridge().fit(known, target, sample_weight=weight)
        return np.asarray(ridge.predict(unknown), np.float64).reshape(np.asarray(held_out.target).shape)
    if task == "regression":
        return _predict_by_ridge(known, target, weight, unknown).reshape(np.asarray(held_out.target).shape)
    classes, codes = np.unique(target, return_inverse=True)
    if len(classes) < 2:
        return None
    # A class without a training sample has probability 0.
    scores = np.zeros((len(held_out), len(labels)))
    if texts:
        scores[:, classes] = _predict_by_sklearn(known, codes, weight, unknown)
    else:
        scores[:, classes] = _predict_by_softmax(known, codes, weight, unknown)
    return scores


def _predict_by_sklearn(
    known: Any, codes: NDArray[Any], weight: NDArray[Any] | None, unknown: Any
) -> NDArray[np.float64]:
    """Return the class probabilities of scikit-learn's logistic regression, for sparse features."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_TEXT_C, max_iter=_ITERATIONS, tol=_TOLERANCE)
    with warnings.catch_warnings():
        # A fit that ends after the iterations is a baseline too.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(known, codes, sample_weight=weight)
    return np.asarray(model.predict_proba(unknown), np.float64)


def _predict_by_softmax(
    known: NDArray[np.float64], codes: NDArray[Any], weight: NDArray[Any] | None, unknown: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what scikit-learn's LogisticRegression() predicts, without importing it, which takes longer than the fit.

    The cross-entropy of all samples and half the squared coefficients, without the intercepts, are minimised by L-BFGS.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax, softmax

    size, features, classes = len(known), known.shape[1], int(codes.max()) + 1
    # Of two classes scikit-learn has one vector of coefficients, which is the difference of the two here.
    strength = 2.0 if classes == 2 else 1.0
    weights = np.ones(size) if weight is None else np.asarray(weight, np.float64)
    rows = np.arange(size)

    def compute_loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        matrix = flat.reshape(features + 1, classes)
        logs = log_softmax(known @ matrix[:-1] + matrix[-1], axis=1)
        error = np.exp(logs)
        error[rows, codes] -= 1
        error *= weights[:, np.newaxis]
        gradient = np.vstack([known.T @ error + strength * matrix[:-1], error.sum(axis=0)])
        loss = -(weights @ logs[rows, codes]) + strength / 2 * np.square(matrix[:-1]).sum()
        # Divided by the weights, as scikit-learn's tolerance means the loss of a sample.
        return loss / weights.sum(), gradient.ravel() / weights.sum()

    options = {"maxiter": _ITERATIONS, "gtol": _TOLERANCE, "maxls": 50}
    start = np.zeros((features + 1) * classes)
    best = minimize(compute_loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(-1, classes)
    probabilities: NDArray[np.float64] = softmax(unknown @ best[:-1] + best[-1], axis=1)
    return probabilities


def _predict_by_ridge(
    known: NDArray[np.float64], target: NDArray[Any], weight: NDArray[Any] | None, unknown: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what scikit-learn's Ridge() predicts, without importing it, which takes longer than the fit."""
    numbers = target.reshape(len(target), -1).astype(np.float64)
    weights = np.ones(len(known)) if weight is None else np.asarray(weight, np.float64)
    centre, mean = (np.average(array, axis=0, weights=weights) for array in (known, numbers))
    weighted = (known - centre) * weights[:, np.newaxis]
    gram = weighted.T @ (known - centre) + np.eye(known.shape[1])
    predicted: NDArray[np.float64] = (unknown - centre) @ np.linalg.solve(gram, weighted.T @ (numbers - mean)) + mean
    return predicted


def _append_terms(unit: str, features: tuple[Any, Any], texts: tuple[NDArray[Any], NDArray[Any]]) -> tuple[Any, Any]:
    """Return both splits' features with the TF-IDF vectors of their texts, as sparse matrices."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    analyzer, longest = ("char", 3) if unit == "characters" else ("word", 2)
    vectorizer = TfidfVectorizer(
        analyzer=analyzer,
        ngram_range=(1, longest),
        token_pattern=r"\w+" if analyzer == "word" else None,
        decode_error="replace",
        sublinear_tf=True,
        max_features=_MOST_TERMS,
    )
    try:
        vectorizer.fit(texts[0])
    except ValueError:
        # No text has a word.
        return features
    known, unknown = (
        csr_matrix(hstack([csr_matrix(part), vectorizer.transform(column)]))
        for part, column in zip(features, texts, strict=True)
    )
    return known, unknown


def _stack(
    train: Mapping[str, NDArray[Any]], held_out: Mapping[str, NDArray[Any]], count: int
) -> NDArray[np.float64] | None:
    """Return all inputs of both splits as one matrix; None where an input is neither numbers nor a few indexes.

    Args:
        train: The training split's inputs.
        held_out: The other split's inputs, which may have more.
        count: Samples of both splits.
    """
    if not train:
        return np.empty((count, 0))
    parts = []
    for name, array in train.items():
        both = np.concatenate([array, held_out[name]])
        if both.dtype.kind not in "biuf":
            return None
        if both.dtype.kind in "iu" and both.ndim == 1:
            values = np.unique(array)
            if len(values) > _MOST_INDEXES:
                return None
            both = both[:, np.newaxis] == values
        parts.append(both.reshape(len(both), -1).astype(np.float64))
    matrix = np.concatenate(parts, axis=1)
    return matrix if np.isfinite(matrix).all() else None
