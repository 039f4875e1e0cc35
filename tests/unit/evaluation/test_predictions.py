from __future__ import annotations

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import compute_confusion
from kfp_mindspore.evaluation.predictions import Predictions, build_predictions, decode_scores
from kfp_mindspore.evaluation.summaries import compute_calibration, compute_class_scores, list_worst

LOGITS = np.array([[2.0, 0.0], [0.0, 3.0], [1.5, 0.5]])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[0.25, 0.75]], [[0.25, 0.75]]),
        ([[0.0, np.log(3)]], [[0.25, 0.75]]),
        ([[-np.inf, 0.0]], [[0.0, 1.0]]),
        ([0.75], [[0.25, 0.75]]),
        ([[np.log(3) + 0.0], [5.0]][:1], [[0.25, 0.75]]),
        (np.array([[0.25, 0.7495]], np.float16), [[0.25, 0.7495]]),
    ],
)
def test_scores_are_probabilities_or_logits(scores, expected) -> None:
    predictions = build_predictions("classification", np.array(scores), np.array([1]))
    np.testing.assert_allclose(predictions.probabilities, expected, atol=1e-3)
    assert predictions.values.tolist() == [1]


@pytest.mark.parametrize(
    ("task", "scores", "target", "options", "message"),
    [
        ("none", [1.0], [1.0], {}, "task none: has no metrics, expected classification"),
        ("classification", LOGITS, [0, 1], {}, r"scores: must have shape \(2, K\), got \(3, 2\)"),
        ("classification", LOGITS, [0, 1, 2], {}, "target: class 2, but the model has scores for 2 classes"),
        ("classification", LOGITS * np.nan, [0, 1, 1], {}, "scores: NaN or infinite for 3 of 3 rows, first row 0"),
        ("regression", [1.0, -np.inf], [0.0, 0.0], {}, "infinite for 1 of 2 rows, first row 1"),
        ("regression", [[1.0, 2.0]], [1.0], {}, r"scores: must have shape \(1,\), got \(1, 2\)"),
        ("regression", [], [], {}, "no samples"),
        ("regression", np.array([b"a"]), [1.0], {}, "scores: must be numbers"),
        ("regression", [1.0], [1.0], {"weight": [-1]}, "weight: must be 1 numbers from 0 on"),
        ("ranking", [1.0], [1.0], {"groups": ["a", "b"]}, r"groups: must have shape \(1,\)"),
        ("multi_label", LOGITS, [0, 1, 1], {}, r"target: must have shape \(3, K\)"),
        ("language_model", np.zeros((1, 2, 3)), [[1, 3]], {}, "target: id 3, but the model has scores for 3 ids"),
        ("language_model", np.zeros((1, 2, 3)), [[-1, -1]], {}, "no token is counted"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(task, scores, target, options, message) -> None:
    with pytest.raises(UserError, match=message):
        build_predictions(task, np.array(scores), np.array(target), **options)


def test_parts_are_concatenated_and_selected() -> None:
    target = np.array([0, 1, 1])
    whole = build_predictions("classification", LOGITS, target, groups=target)
    parts = [
        build_predictions("classification", LOGITS[rows], target[rows], groups=target[rows]) for rows in ([0, 1], [2])
    ]
    joined = Predictions.concatenate(parts)
    selected = whole.select(np.array([2, 2]))
    assert len(joined) == 3
    np.testing.assert_array_equal(joined.losses, whole.losses)
    np.testing.assert_array_equal(joined.groups, target)
    assert selected.values.tolist() == [0, 0]
    assert selected.hits.tolist() == [0, 0]


def test_summaries_of_classification() -> None:
    logits = np.pad(LOGITS, ((0, 0), (0, 1)), constant_values=-np.inf)
    predictions = build_predictions("classification", logits, np.array([0, 1, 1]))
    assert compute_confusion(predictions).tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    cat, dog, owl = compute_class_scores(["cat", "dog", "owl"], predictions)
    assert (cat.count, cat.precision, cat.recall) == (1, 0.5, 1.0)
    assert (dog.count, dog.precision, dog.recall) == (2, 1.0, 0.5)
    assert owl.count == 0
    assert np.isnan([owl.precision, owl.recall]).all()
    curve = compute_calibration(predictions)
    assert curve.weight.tolist() == [1, 1, 1]
    assert curve.accuracy.tolist() == [0, 1, 1]
    np.testing.assert_allclose(curve.confidence, 1 / (1 + np.exp([-1, -2, -3])))
    assert list_worst(predictions, 2) == [2, 0]


def test_scores_of_labels() -> None:
    predictions = build_predictions("multi_label", np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([[1, 0], [1, 1]]))
    found = compute_class_scores(["red", "blue"], predictions)
    assert [(row.count, row.precision, row.recall) for row in found] == [(2, 1.0, 0.5), (1, 0.5, 1.0)]


@pytest.mark.parametrize(
    ("task", "scores", "labels", "expected"),
    [
        ("classification", LOGITS, ("cat", "dog"), ["cat", "dog", "cat"]),
        ("classification", LOGITS, (), [0, 1, 0]),
        ("classification", [[-1.0], [2.0]], ("cat", "dog"), ["cat", "dog"]),
        ("classification", [0.4, 0.6], ("cat", "dog"), ["cat", "dog"]),
        ("multi_label", LOGITS, ("red", "blue"), [["red"], ["blue"], ["red", "blue"]]),
        ("regression", [[1.5], [2.0]], (), [1.5, 2.0]),
        ("regression", [[1.5, 2.0]], (), [[1.5, 2.0]]),
        ("language_model", [[[0.0, 1.0], [1.0, 0.0]]], (), [[1, 0]]),
        ("ranking", [[0.5]], (), [0.5]),
        ("none", [[0.5]], (), [None]),
    ],
)
def test_scores_are_decoded_by_task(task, scores, labels, expected) -> None:
    assert decode_scores(task, np.array(scores), labels) == expected
