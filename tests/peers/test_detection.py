"""Average precision of random tables of boxes beside pycocotools'."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.evaluation.detection import compute_average_precision

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("coco_precision.py")
SIDE = 256
# Pictures, classes, most boxes and detections of a picture, and how far detections are from boxes.
TABLES: dict[str, tuple[int, int, int, int, float]] = {
    "usual": (40, 5, 6, 12, 0.1),
    "exact": (30, 3, 4, 8, 0.0),
    "far": (30, 3, 4, 8, 0.5),
    "one-class": (30, 1, 8, 20, 0.1),
    "one-picture": (1, 2, 5, 9, 0.1),
    "crowded": (3, 1, 60, 150, 0.05),
    "no-detections": (10, 3, 4, 0, 0.1),
    "many-classes": (10, 40, 3, 6, 0.1),
}


def draw(name: str, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return detections (N, D, 6) and truth (N, M, 5) with ties of scores and of overlaps, in whole pixels."""
    pictures, classes, most, wide, noise = TABLES[name]
    generator = np.random.default_rng(seed)
    truth, found = np.zeros((pictures, most, 5)), np.zeros((pictures, max(wide, 1), 6))
    corners = np.sort(generator.integers(0, SIDE, (pictures, most, 2, 2)), axis=2)
    corners[:, :, 1] += 1
    truth[..., 0] = np.where(
        generator.random((pictures, most)) < 0.3, -1, generator.integers(0, classes, (pictures, most))
    )
    truth[..., 1:3], truth[..., 3:] = corners.mean(axis=2), corners[:, :, 1] - corners[:, :, 0]
    chosen = generator.integers(0, most, (pictures, found.shape[1]))
    near = np.take_along_axis(truth, chosen[..., None], axis=1)
    shift = generator.normal(0, noise, near[..., 1:].shape) * np.tile(near[..., 3:], 2)
    found[..., 2:] = np.maximum(np.round((near[..., 1:] + shift) * 2) / 2, 1)
    found[..., 0] = np.where(
        generator.random(chosen.shape) < 0.8, near[..., 0], generator.integers(0, classes, chosen.shape)
    )
    # One decimal: many scores are equal.
    found[..., 1] = np.round(generator.random(chosen.shape), 1)
    if not wide:
        found[..., 0] = -1
    return found, truth, classes


def to_rows(table: np.ndarray) -> list[dict[str, Any]]:
    rows = []
    for picture, boxes in enumerate(table):
        for row in boxes[boxes[:, 0] >= 0]:
            (x, y), (width, height) = row[-4:-2] - row[-2:] / 2, row[-2:]
            score = {"score": float(row[1])} if len(row) == 6 else {}
            box = {"bbox": [float(x), float(y), float(width), float(height)], "category_id": int(row[0])}
            rows.append({"image_id": picture, **box, **score})
    return rows


def test_average_precision_equals_pycocotools(peers: Path, tmp_path: Path) -> None:
    drawn = [(f"{name}-{seed}", *draw(name, seed)) for name in TABLES for seed in range(5)]
    tables = [
        {"pictures": len(truth), "classes": classes, "truth": to_rows(truth), "detections": to_rows(found)}
        for _, found, truth, classes in drawn
    ]
    file = tmp_path / "tables.json"
    file.write_text(json.dumps(tables))
    answer = subprocess.run([peers, SCRIPT, file], stdout=subprocess.PIPE, text=True, check=True, timeout=200)
    for (name, found, truth, classes), expected in zip(drawn, json.loads(answer.stdout), strict=True):
        precision = compute_average_precision(found, truth, classes)
        np.testing.assert_allclose(precision, np.array(expected["by_class"], float), atol=1e-6, err_msg=name)
        assert np.nanmean(precision) == pytest.approx(expected["map"], abs=1e-6), name
        assert np.nanmean(precision[0]) == pytest.approx(expected["map50"], abs=1e-6), name
