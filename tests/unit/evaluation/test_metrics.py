from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.evaluation.metrics import METRICS, check_threshold, compute_metrics
from kfp_mindspore.evaluation.predictions import build_predictions

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(60, 4))
CLASSES = GENERATOR.integers(4, size=60)
WEIGHT = GENERATOR.random(60) + 0.1
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
PREDICTED = LOGITS.argmax(axis=1)
MARKS = (GENERATOR.random((60, 3)) > 0.6).astype(np.float32)
CHANCES = GENERATOR.random((60, 3))
NUMBERS = GENERATOR.normal(size=60)
ESTIMATES = NUMBERS + GENERATOR.normal(size=60) / 2

by_class = build_predictions("classification", LOGITS, CLASSES, weight=WEIGHT)
by_label = build_predictions("multi_label", CHANCES, MARKS, weight=WEIGHT)
by_number = build_predictions("regression", ESTIMATES[:, None], NUMBERS, weight=WEIGHT)
by_rank = build_predictions("ranking", ESTIMATES, NUMBERS > 0, weight=WEIGHT)


@pytest.mark.parametrize(
    ("predictions", "metric", "expected"),
    [
        (by_class, "accuracy", sklearn_metrics.accuracy_score(CLASSES, PREDICTED, sample_weight=WEIGHT)),
        (
            by_class,
            "balanced_accuracy",
            sklearn_metrics.balanced_accuracy_score(CLASSES, PREDICTED, sample_weight=WEIGHT),
        ),
        (by_class, "f1_macro", sklearn_metrics.f1_score(CLASSES, PREDICTED, average="macro", sample_weight=WEIGHT)),
        (
            by_class,
            "roc_auc",
            sklearn_metrics.roc_auc_score(
                CLASSES[:, None] == np.arange(4), PROBABILITIES, average="macro", sample_weight=WEIGHT
            ),
        ),
        (by_class, "log_loss", sklearn_metrics.log_loss(CLASSES, PROBABILITIES, sample_weight=WEIGHT)),
        (by_label, "accuracy", sklearn_metrics.accuracy_score(MARKS, CHANCES > 0.5, sample_weight=WEIGHT)),
        (by_label, "f1_macro", sklearn_metrics.f1_score(MARKS, CHANCES > 0.5, average="macro", sample_weight=WEIGHT)),
        (by_label, "roc_auc", sklearn_metrics.roc_auc_score(MARKS, CHANCES, sample_weight=WEIGHT)),
        (
            by_label,
            "log_loss",
            np.mean(
                [
                    sklearn_metrics.log_loss(MARKS[:, label], CHANCES[:, label], sample_weight=WEIGHT)
                    for label in range(3)
                ]
            ),
        ),
        (by_number, "mae", sklearn_metrics.mean_absolute_error(NUMBERS, ESTIMATES, sample_weight=WEIGHT)),
        (by_number, "rmse", sklearn_metrics.root_mean_squared_error(NUMBERS, ESTIMATES, sample_weight=WEIGHT)),
        (by_number, "r2", sklearn_metrics.r2_score(NUMBERS, ESTIMATES, sample_weight=WEIGHT)),
        (by_rank, "roc_auc", sklearn_metrics.roc_auc_score(NUMBERS > 0, ESTIMATES, sample_weight=WEIGHT)),
        (by_rank, "ndcg@5", sklearn_metrics.ndcg_score([NUMBERS > 0], [ESTIMATES], k=5)),
    ],
)
def test_metric_equals_sklearn(predictions, metric, expected) -> None:
    assert get_metric(metric, predictions.task)(predictions) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_metric_equals_sklearn_with_ties_and_zero_weights(seed) -> None:
    generator = np.random.default_rng(seed)
    scores, relevance = np.round(generator.normal(size=(30, 3)), 1), generator.integers(4, size=30)
    target, weight = generator.integers(2 + seed % 2, size=30), generator.integers(3, size=30).astype(float)
    counted = weight > 0
    by_class = build_predictions("classification", scores, target, weight=weight)
    truth, chances = target[counted, None] == np.arange(3), by_class.probabilities[counted]
    areas = [
        sklearn_metrics.roc_auc_score(truth[:, column], chances[:, column], sample_weight=weight[counted])
        for column in range(2 + seed % 2)
    ]
    recall = sklearn_metrics.recall_score(
        target, by_class.values, labels=np.unique(target), average="macro", sample_weight=weight, zero_division=0
    )
    f1 = sklearn_metrics.f1_score(target, by_class.values, average="macro", sample_weight=weight, zero_division=0)
    found = compute_metrics(by_class)
    assert found["roc_auc"] == pytest.approx(np.mean(areas))
    assert found["balanced_accuracy"] == pytest.approx(recall)
    assert found["f1_macro"] == pytest.approx(f1)
    for cutoff in (1, 5, 40):
        expected = sklearn_metrics.ndcg_score([relevance], [scores[:, 0]], k=cutoff)
        by_rank = build_predictions("ranking", scores[:, 0], relevance)
        assert get_metric(f"ndcg@{cutoff}")(by_rank) == pytest.approx(expected)
    estimates = np.stack([relevance, np.ones(30)], axis=1)
    constant = build_predictions("regression", estimates, np.stack([target, np.ones(30)], axis=1), weight=weight)
    r2 = sklearn_metrics.r2_score(constant.target, estimates, sample_weight=weight)
    assert compute_metrics(constant)["r2"] == pytest.approx(r2)


HALF = np.full((1, 2), 0.5)
TOKENS = np.log([[[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]])


@pytest.mark.parametrize(
    ("task", "scores", "target", "options", "expected"),
    [
        # One of the two bins has confidence 0.9 and accuracy 0.5, the other 0.6 and 1.
        (
            "classification",
            [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]],
            [0, 1, 1],
            {},
            {"calibration_error": (2 * 0.4 + 0.4) / 3, "accuracy": 2 / 3, "roc_auc": 0.75},
        ),
        ("classification", [0.2, 0.8], [0, 1], {}, {"accuracy": 1, "log_loss": -math.log(0.8), "roc_auc": 1}),
        ("classification", [-2.0, 2.0], [0, 1], {}, {"log_loss": math.log(1 + math.exp(-2))}),
        ("classification", HALF, [1], {}, {"log_loss": math.log(2), "roc_auc": math.nan}),
        ("multi_label", [[3.0, -3.0]], [[1, 0]], {}, {"accuracy": 1, "log_loss": math.log(1 + math.exp(-3))}),
        (
            "regression",
            [1.0, 2.0, 5.0],
            [1.0, 3.0, 3.0],
            {},
            {"mae": 1, "rmse": math.sqrt(5 / 3), "r2": 1 - 5 / (8 / 3)},
        ),
        ("regression", [[0.0, 1.0]], [[3.0, 5.0]], {}, {"mae": 3.5, "rmse": math.sqrt(12.5), "r2": math.nan}),
        (
            "language_model",
            TOKENS,
            [[0, 0]],
            {},
            {"loss": 1.5 * math.log(2), "perplexity": 2**1.5, "accuracy": 0.5},
        ),
        ("language_model", TOKENS, [[0, -1]], {}, {"perplexity": 2, "accuracy": 1}),
        ("language_model", TOKENS, [[0, 0]], {"weight": [[0, 1]]}, {"perplexity": 4, "accuracy": 0}),
        ("language_model", TOKENS[0], [[2, 2]], {}, {"perplexity": 2**1.5}),
        # The second group has one sample only.
        (
            "ranking",
            [3, 2, 1, 9],
            [0, 1, 0, 1],
            {"groups": ["a", "a", "a", "b"]},
            {"ndcg@10": 1 / math.log2(3), "roc_auc": 0.75},
        ),
        ("ranking", [1, 2], [0, 0], {}, {"ndcg@10": math.nan, "roc_auc": math.nan}),
    ],
)
def test_metric_equals_value_by_hand(task, scores, target, options, expected) -> None:
    found = compute_metrics(build_predictions(task, np.array(scores), np.array(target), **options))
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def _make_perfect(task: str, seed: int, count: int):
    generator = np.random.default_rng(seed)
    classes = np.arange(count) % 3
    if task == "classification":
        return np.eye(3)[classes], classes
    if task == "multi_label":
        marks = np.eye(3)[classes]
        return marks, marks
    if task == "language_model":
        ids = generator.integers(5, size=(count, 4))
        return np.eye(5)[ids], ids
    numbers = generator.permutation(count).astype(float)
    return numbers, numbers


@given(
    st.sampled_from(["classification", "multi_label", "regression", "language_model", "ranking"]),
    st.integers(0, 99),
    st.integers(3, 30),
)
@settings(max_examples=60, deadline=None)
def test_perfect_predictions_have_best_value(task, seed, count) -> None:
    for name, value in compute_metrics(build_predictions(task, *_make_perfect(task, seed, count))).items():
        metric = METRICS[name]
        assert value == pytest.approx(metric.high if metric.higher_is_better else metric.low, abs=1e-12), name


@given(
    st.sampled_from(["classification", "multi_label", "regression", "language_model", "ranking"]), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_values_are_in_range(task, seed) -> None:
    generator = np.random.default_rng(seed)
    scores, target = _make_perfect(task, seed, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compute_metrics(build_predictions(task, scores + generator.normal(size=scores.shape) * 3, target))
    for name, value in found.items():
        assert METRICS[name].low <= value <= METRICS[name].high, name


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("acuracy", "", r"metric 'acuracy': unknown; did you mean 'accuracy'\?"),
        ("f1", "classification", r"did you mean 'f1_macro'\?"),
        ("auc", "ranking", r"did you mean 'roc_auc'\?"),
        ("zzz", "ranking", r"expected roc_auc, ndcg@10$"),
        ("mae", "classification", r"metric mae: is for regression, not classification; expected accuracy, balanced_"),
        ("", "none", "task none: has no metrics"),
    ],
)
def test_unknown_metric_is_refused(name, task, message) -> None:
    with pytest.raises(UserError, match=message):
        get_metric(name, task)


@pytest.mark.parametrize(
    ("task", "default"),
    [
        ("classification", "accuracy"),
        ("multi_label", "f1_macro"),
        ("regression", "rmse"),
        ("language_model", "perplexity"),
        ("ranking", "ndcg@10"),
    ],
)
def test_default_metric(task, default) -> None:
    assert get_metric("", task) is METRICS[default]


@pytest.mark.parametrize(
    ("metric", "task", "threshold", "message"),
    [
        ("accuracy", "", 1.0, ""),
        ("accuracy", "", 95, "must be 0 to 1, the range of accuracy, got 95"),
        ("accuracy", "", math.nan, "got nan"),
        ("accuracy", "", None, ""),
        ("rmse", "", -1, "must be at least 0, the range of rmse, got -1"),
        ("", "language_model", 0.5, "must be at least 1, the range of perplexity"),
        ("r2", "", 2, "must be at most 1, the range of r2, got 2"),
        ("r2", "", -5, ""),
        ("", "", 95, ""),
    ],
)
def test_threshold_outside_range_is_refused(metric, task, threshold, message) -> None:
    if not message:
        check_threshold(metric, threshold, task=task)
        return
    with pytest.raises(ValidationError, match=message):
        check_threshold(metric, threshold, task=task)


@pytest.mark.parametrize(
    ("metric", "value", "threshold", "met"),
    [
        ("accuracy", 0.9, 0.9, True),
        ("accuracy", 0.8, 0.9, False),
        ("accuracy", math.nan, 0.0, False),
        ("accuracy", 0.1, None, True),
        ("rmse", 2.0, 3.0, True),
        ("rmse", 4.0, 3.0, False),
        ("rmse", math.nan, 3.0, False),
    ],
)
def test_gate_has_direction_of_metric(metric, value, threshold, met) -> None:
    assert get_metric(metric).is_met(value, threshold) is met
