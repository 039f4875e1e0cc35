"""Detection of drawn forms by sliding templates, the baseline of a trained detector: NumPy alone.

`python -m tests.support.template_detector DATASET [BUNDLE]` prints both average precisions on the test split.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from kfp_mindspore.data.sources.shapes import LABELS, draw_form
from kfp_mindspore.evaluation.detection import compute_average_precision, compute_overlap
from kfp_mindspore.formats.dataset import Dataset

SIDE = 64
RADII = range(7, 16)
KEPT = 12
MARGIN = 2


def build_templates() -> list[tuple[int, int, np.ndarray]]:
    """Return class, radius and the form on a margin, mean 0 and length 1."""
    templates = []
    for label, name in enumerate(LABELS):
        for radius in RADII:
            side = 2 * (radius + MARGIN) + 1
            mask = Image.new("L", (side, side))
            draw_form(ImageDraw.Draw(mask), name, (radius + MARGIN, radius + MARGIN), radius, 1)
            form = np.asarray(mask, float)
            form -= form.mean()
            templates.append((label, radius, form / np.linalg.norm(form)))
    return templates


def detect(picture: np.ndarray, templates: list[tuple[int, int, np.ndarray]]) -> np.ndarray:
    """Return the best boxes (class, score, box) in a picture (3, SIDE, SIDE).

    The score is the largest absolute normalised correlation of a colour channel; boxes that overlap a better one by
    half are removed.
    """
    found = []
    padded = np.pad(picture, ((0, 0), (20, 20), (20, 20)), mode="edge")
    size = padded.shape[-1]
    spectrum, square = np.fft.rfft2(padded), np.fft.rfft2(padded**2)

    def correlate(given: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        other = np.conj(np.fft.rfft2(kernel, (size, size)))
        return np.fft.irfft2(given * other, (size, size))[..., : size - len(kernel) + 1, : size - len(kernel) + 1]

    for label, radius, form in templates:
        window = np.ones_like(form)
        mean, power = correlate(spectrum, window) / form.size, correlate(square, window)
        deviation = np.sqrt(np.maximum(power - form.size * mean**2, 1e-6))
        # Flat windows have no form, whatever their noise is.
        scores = np.abs(correlate(spectrum, form)) / np.maximum(deviation, 0.05 * len(form))
        best = scores.max(0)
        for place in np.argsort(-best, axis=None)[:20]:
            row, column = (int(index) + radius + MARGIN - 20 for index in np.unravel_index(place, best.shape))
            side = (2 * radius + 1) / SIDE
            box = ((column + 0.5) / SIDE, (row + 0.5) / SIDE, side, side)
            found.append((label, min(float(best.flat[place]), 1.0), *box))
    rows = np.array(sorted(found, key=lambda row: -row[1]))
    kept: list[np.ndarray] = []
    for row in rows:
        if len(kept) < KEPT and (not kept or compute_overlap(row[None, 2:], np.array(kept)[:, 2:]).max() < 0.5):
            kept.append(row)
    return np.array(kept)


def compute_baseline(dataset: Dataset, count: int | None = None) -> np.ndarray:
    """Return the average precision by overlap and class on the first `count` test pictures."""
    columns = dataset.read_columns("test")
    templates, detections = build_templates(), []
    for content in columns["image"][:count]:
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), float) / 255
        rows = detect(pixels.transpose(2, 0, 1), templates)
        detections.append(np.pad(rows, ((0, KEPT - len(rows)), (0, 0)), constant_values=-1))
    return compute_average_precision(np.array(detections), columns["boxes"][:count], len(LABELS))


def main() -> None:
    """Print the figures."""
    dataset = Dataset.open(sys.argv[1])
    found: dict[str, Any] = {"templates": float(np.nanmean(compute_baseline(dataset)[0]))}
    if len(sys.argv) > 2:
        from kfp_mindspore.mindir import evaluate_bundle

        found["detector"] = evaluate_bundle(sys.argv[2], dataset.path).metrics["map50"]
    print(found)


if __name__ == "__main__":
    main()
