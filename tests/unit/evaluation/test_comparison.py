from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import compare_predictions, get_metric
from kfp_mindspore.evaluation.comparison import estimate_metric
from kfp_mindspore.evaluation.metrics import METRICS
from kfp_mindspore.evaluation.predictions import build_predictions

TARGET = np.arange(200) % 2


def _predict(errors: int):
    """Predictions of 200 samples, of which the first ones are wrong."""
    wrong = np.arange(200) < errors
    return build_predictions("classification", np.eye(2)[np.where(wrong, 1 - TARGET, TARGET)], TARGET)


@pytest.mark.parametrize(
    ("candidate", "baseline", "better", "worse"),
    [(20, 60, True, False), (60, 20, False, True), (20, 22, False, False), (20, 20, False, False)],
)
@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "f1_macro"])
def test_interval_separates_differences_from_chance(metric, candidate, baseline, better, worse) -> None:
    found = compare_predictions(get_metric(metric), _predict(candidate), _predict(baseline), resamples=100)
    assert (found.low > 0, found.high < 0) == (better, worse)
    assert found.low <= found.improvement <= found.high


def test_interval_of_mean_has_width_of_normal_approximation() -> None:
    generator = np.random.default_rng(1)
    target = np.zeros(400)
    first, second = (generator.normal(size=400) for _ in range(2))
    errors = np.abs(second) - np.abs(first)
    found = compare_predictions(
        METRICS["mae"], *(build_predictions("regression", values, target) for values in (first, second))
    )
    assert found.improvement == pytest.approx(errors.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * errors.std() / 20, rel=0.1)


@pytest.mark.parametrize(("name", "width"), [("accuracy", 2 * 1.96 * 0.4 / 200**0.5), ("f1_macro", 0.11)])
def test_interval_of_one_model_has_width_of_normal_approximation(name: str, width: float) -> None:
    value, low, high = estimate_metric(get_metric(name), _predict(40))
    assert low < value < high
    assert value == pytest.approx(0.8, abs=0.01)
    assert high - low == pytest.approx(width, rel=0.1)


@given(st.sampled_from(sorted(METRICS)), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_interval_of_equal_models_is_zero(name, seed) -> None:
    generator = np.random.default_rng(seed)
    task = METRICS[name].tasks[-1]
    scores, target, groups = {
        "classification": (generator.random((30, 3)), generator.integers(3, size=30), None),
        "multi_label": (generator.random((30, 3)), generator.integers(2, size=(30, 3)), None),
        "regression": (generator.random(30), generator.random(30), None),
        "language_model": (generator.random((30, 4, 5)), generator.integers(5, size=(30, 4)), None),
        "ranking": (generator.random(30), np.arange(30) % 2, np.arange(30) // 6),
        "detection": (generator.random((30, 3, 7)), generator.random((30, 2, 5)) * [0, 1, 1, 1, 1], None),
    }[task]
    predictions = build_predictions(task, scores, target, groups=groups)
    found = compare_predictions(METRICS[name], predictions, predictions, resamples=20)
    assert (found.improvement, found.low, found.high) == (0, 0, 0)


def test_groups_of_ranking_are_drawn_whole() -> None:
    target, groups = np.tile([1.0, 0.0], 20), np.repeat(np.arange(20), 2)
    right, wrong = (build_predictions("ranking", scores, target, groups=groups) for scores in (target, 1 - target))
    for name in ("ndcg@10", "roc_auc"):
        found = compare_predictions(METRICS[name], right, wrong, resamples=20)
        assert (
            found.low
            == found.improvement
            == found.high
            == pytest.approx(1 if name == "roc_auc" else 1 - 1 / np.log2(3))
        )


@pytest.mark.parametrize(
    ("rows", "confidence", "message"),
    [(slice(100), 0.95, "evaluated on the same samples"), (slice(None), 1.0, "confidence: must be between 0 and 1")],
)
def test_invalid_comparison_is_refused(rows, confidence, message) -> None:
    baseline = _predict(3).select(np.arange(200)[rows])
    with pytest.raises(UserError, match=message):
        compare_predictions(METRICS["accuracy"], _predict(3), baseline, confidence=confidence)
