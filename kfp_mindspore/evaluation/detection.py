"""Boxes in pictures: overlap, average precision as COCO defines it, and errors by picture.

A box is centre x, centre y, width and height as fractions of the picture. A truth row is (class, box), with class -1
for no box; a detection row is (class, score, box).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError

Floats = NDArray[np.float64]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""Least overlaps of a detection with its box, float64 (10,)."""
_RECALLS = np.linspace(0, 1, 101)
# COCO's limit for a picture and class.
_MAX_DETECTIONS = 100
_EXACT = 1 - 1e-10


def to_corners(boxes: NDArray[Any]) -> NDArray[Any]:
    """Return boxes (…, 4) as left, top, right, bottom."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([centre - size / 2, centre + size / 2], -1)


def compute_overlap(first: NDArray[Any], second: NDArray[Any], *, generalised: bool = False) -> Floats:
    """Return the intersection over union of boxes (D, 4) and (G, 4), float64 (D, G).

    Args:
        first: D boxes.
        second: G boxes.
        generalised: Whether the part of the hull that is in neither box is subtracted (Rezatofighi et al., 2019,
            arXiv:1902.09630).
    """
    one, other = to_corners(first.astype(np.float64))[:, None], to_corners(second.astype(np.float64))[None]
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = np.clip(sides, 0, None).prod(-1)
    union = first[:, None, 2:].prod(-1) + second[None, :, 2:].prod(-1) - shared
    overlap: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    if generalised:
        hull = (np.maximum(one[..., 2:], other[..., 2:]) - np.minimum(one[..., :2], other[..., :2])).prod(-1)
        overlap -= np.divide(hull - union, hull, out=np.zeros_like(hull), where=hull > 0)
    return overlap


def decode_detections(scores: Floats) -> Floats:
    """Return each query's best class, its score and the box, (N, Q, 6), from logits and boxes.

    Args:
        scores: Logits for C classes and for no object, then the box, shape (N, Q, C + 5).

    Raises:
        UserError: The shape is another one.
    """
    if scores.ndim != 3 or scores.shape[2] < 6:
        raise UserError(f"scores: must have shape (N, Q, C + 5), logits then boxes, got {scores.shape}")
    logits = scores[..., :-4]
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    classes = (exponentials / exponentials.sum(-1, keepdims=True))[..., :-1]
    return np.concatenate([classes.argmax(-1)[..., None], classes.max(-1)[..., None], scores[..., -4:]], -1)


def compute_average_precision(detections: NDArray[Any], truth: NDArray[Any], classes: int) -> Floats:
    """Return the average precision by overlap and class, equal to pycocotools' for boxes of any area.

    Lin et al., 2014, arXiv:1405.0312; precision is interpolated at 101 recalls, at most 100 detections count for a
    picture and class. Detections with equal scores stay in order.

    Args:
        detections: Shape (N, D, 6); rows with a class below 0 do not count.
        truth: Shape (N, M, 5).
        classes: How many classes there are.

    Returns:
        float64 (10, classes) for `THRESHOLDS`; NaN for a class without a box in `truth`.
    """
    found = np.full((len(THRESHOLDS), classes), np.nan)
    for label in range(classes):
        total = int((truth[..., 0] == label).sum())
        if total:
            parts = [
                _match_picture(rows[rows[:, 0] == label], boxes[boxes[:, 0] == label, 1:])
                for rows, boxes in zip(detections, truth, strict=True)
            ]
            scores, hits = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts], 1)
            found[:, label] = _average(hits[:, np.argsort(-scores, kind="stable")], total)
    return found


def count_errors(detections: NDArray[Any], truth: NDArray[Any], score: float = 0.5) -> Floats:
    """Return each picture's boxes that were missed plus its detections without a box, float64 (N,).

    Args:
        detections: Shape (N, D, 6).
        truth: Shape (N, M, 5).
        score: Least score of a detection; it finds a box of its class from an overlap of 0.5 on.
    """
    errors = np.zeros(len(truth))
    for index, (rows, boxes) in enumerate(zip(detections, truth, strict=True)):
        chosen = rows[(rows[:, 0] >= 0) & (rows[:, 1] >= score)]
        boxes = boxes[boxes[:, 0] >= 0]
        for label in np.unique(np.concatenate([chosen[:, 0], boxes[:, 0]])):
            here = boxes[boxes[:, 0] == label, 1:]
            _, hits = _match_picture(chosen[chosen[:, 0] == label], here)
            errors[index] += hits.shape[1] + len(here) - 2 * hits[0].sum()
    return errors


def _match_picture(rows: NDArray[Any], boxes: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return one class's scores, highest first, and whether each finds a box of its own, bool (10, D)."""
    rows = rows[np.argsort(-rows[:, 1], kind="stable")[:_MAX_DETECTIONS]]
    hits = np.zeros((len(THRESHOLDS), len(rows)), bool)
    if len(boxes):
        free = np.ones((len(THRESHOLDS), len(boxes)), bool)
        least = np.minimum(THRESHOLDS, _EXACT)
        for index, overlaps in enumerate(compute_overlap(rows[:, 2:], boxes)):
            if overlaps.max() < least[0]:
                continue
            # Of boxes with equal overlaps pycocotools takes the last one.
            candidates = np.where(free, overlaps, -1.0)[:, ::-1]
            best = candidates.argmax(1)
            hits[:, index] = candidates.max(1) >= least
            free[hits[:, index], len(boxes) - 1 - best[hits[:, index]]] = False
    return rows[:, 1].astype(np.float64), hits


def _average(hits: NDArray[np.bool_], total: int) -> Floats:
    """Return the mean interpolated precision by overlap of detections in order, float64 (10,)."""
    true = np.cumsum(hits, 1, dtype=np.float64)
    recall = true / total
    precision = true / (np.arange(1, hits.shape[1] + 1) + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    found = np.zeros(len(hits))
    for index in range(len(hits)):
        places = np.searchsorted(recall[index], _RECALLS, side="left")
        found[index] = precision[index, places[places < hits.shape[1]]].sum() / len(_RECALLS)
    return found
