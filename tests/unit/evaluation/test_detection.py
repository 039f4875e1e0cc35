"""Average precision of boxes by hand; tests/peers compares it with pycocotools'."""

from __future__ import annotations

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.evaluation.detection import (
    compute_average_precision,
    compute_overlap,
    count_errors,
    decode_detections,
)
from kfp_mindspore.evaluation.metrics import UndefinedMetricError, compute_metrics
from kfp_mindspore.evaluation.predictions import build_predictions

LEFT, RIGHT = [0.25, 0.5, 0.5, 1.0], [0.75, 0.5, 0.5, 1.0]


def build(rows: list[list[tuple[float, ...]]], width: int) -> np.ndarray:
    padded = np.zeros((len(rows), max([len(boxes) for boxes in rows] + [1]), width))
    padded[..., 0] = -1
    for index, boxes in enumerate(rows):
        for place, box in enumerate(boxes):
            padded[index, place] = box
    return padded


def test_overlap_of_boxes() -> None:
    boxes = np.array([LEFT, RIGHT, [0.5, 0.5, 0.5, 1.0], [0.5, 0.5, 0.0, 0.0]])
    expected = [[1, 0, 1 / 3, 0], [0, 1, 1 / 3, 0], [1 / 3, 1 / 3, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(compute_overlap(boxes, boxes), expected)


def test_average_precision_by_class() -> None:
    truth = build([[(0, *LEFT), (1, *RIGHT)], [(0, *LEFT)], []], 5)
    found = build([[(0, 0.9, *LEFT), (1, 0.2, *LEFT)], [(0, 0.8, *RIGHT), (0, 0.7, *LEFT)], [(0, 0.95, *LEFT)]], 6)
    precisions = compute_average_precision(found, truth, 3)
    # Hits of class 0 in order: no, yes, no, yes; precision 1/2 up to each recall.
    np.testing.assert_allclose(precisions[0, 0], 0.5)
    assert precisions[0, 1] == 0
    assert np.isnan(precisions[:, 2]).all()


def test_a_box_is_found_once() -> None:
    truth = build([[(0, *LEFT)]], 5)
    found = build([[(0, 0.9, *LEFT), (0, 0.8, *LEFT)]], 6)
    assert compute_average_precision(found, truth, 1)[0, 0] == pytest.approx(1)
    assert count_errors(found, truth).tolist() == [1]


def test_errors_count_missed_and_wrong_boxes() -> None:
    truth = build([[(0, *LEFT), (1, *RIGHT)], [], [(0, *LEFT)]], 5)
    found = build([[(0, 0.9, *LEFT), (0, 0.9, *RIGHT)], [], [(0, 0.4, *LEFT)]], 6)
    assert count_errors(found, truth).tolist() == [2, 0, 1]


def test_predictions_of_logits_and_boxes() -> None:
    logits = np.log([[[0.7, 0.1, 0.2], [0.05, 0.15, 0.8]]])
    scores = np.concatenate([logits, [[LEFT, RIGHT]]], -1)
    np.testing.assert_allclose(decode_detections(scores), [[[0, 0.7, *LEFT], [1, 0.15, *RIGHT]]])
    predictions = build_predictions("detection", scores, build([[(0, *LEFT)]], 5))
    assert compute_metrics(predictions) == {"map50": pytest.approx(1), "map50_95": pytest.approx(1)}
    assert get_metric("", "detection").name == "map50"
    with pytest.raises(UndefinedMetricError, match="needs a box"):
        get_metric("map50")(build_predictions("detection", scores, build([[]], 5)))


@pytest.mark.parametrize(
    ("scores", "target", "message"),
    [
        (np.zeros((1, 2, 5)), np.zeros((1, 1, 5)), "must have shape"),
        (np.zeros((1, 2, 7)), np.zeros((1, 1, 4)), "target: must have shape"),
        (np.zeros((1, 2, 7)), np.array([[[2, *LEFT]]]), "class 2, but the model has scores for 2 classes"),
    ],
)
def test_other_shapes_are_refused(scores, target, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_predictions("detection", scores, target)
