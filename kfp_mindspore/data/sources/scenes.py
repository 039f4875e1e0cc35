"""Drawn scenes: several forms with their boxes in each picture; no download is needed."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.data.sources.boxes import build_step, pad_boxes
from kfp_mindspore.data.sources.shapes import LABELS, draw_form, to_png
from kfp_mindspore.errors import require_extra

NAME = "scenes"
_COUNT = 3000
_SIDE = 64
_MOST = 4
_RADII = (7, 16)
# A form that others hide more than this is not drawn.
_HIDDEN = 0.4


def read_scenes(request: SourceRequest) -> Source:
    """Draw 3,000 pictures with up to 4 forms.

    The field `image` has PNG files with 64×64 RGB pixels: circles, crosses, squares and triangles in random colours and
    sizes that may hide up to 40 % of one another. `boxes` has class and box, shape (4, 5), see
    `kfp_mindspore.data.sources.boxes`. Every load draws the same ones.
    """
    import numpy as np

    where = f"{NAME} (drawn)"
    generator = np.random.default_rng(0)
    scenes = [_draw(generator) for _ in range(_COUNT)]
    columns = {"image": to_objects([image for image, _ in scenes]), "boxes": pad_boxes([rows for _, rows in scenes])}
    select_fields(where, request, list(columns))
    steps = (build_step(request.image_size or (_SIDE, _SIDE)),)
    return Source("PNG", where, columns, ("boxes",), LABELS, "detection", steps=steps)


def _draw(generator: Any) -> tuple[bytes, list[tuple[float, ...]]]:
    """Return a PNG file, and its boxes' rows."""
    import numpy as np

    with require_extra("PIL", "train"):
        from PIL import Image, ImageDraw
    background = generator.integers(0, 256, 3)
    pixels = np.clip(background + generator.normal(0, 6, (_SIDE, _SIDE, 3)), 0, 255).astype(np.uint8)
    image, owners = Image.fromarray(pixels), np.zeros((_SIDE, _SIDE), int)
    draw = ImageDraw.Draw(image)
    rows: list[tuple[float, ...]] = []
    sizes: list[int] = []
    for _ in range(generator.integers(0, 2 * _MOST)):
        label, radius = int(generator.integers(len(LABELS))), int(generator.integers(*_RADII))
        x, y = (int(place) for place in generator.integers(radius, _SIDE - radius, 2))
        colour = generator.integers(0, 256, 3)
        mask = Image.new("1", (_SIDE, _SIDE))
        draw_form(ImageDraw.Draw(mask), LABELS[label], (x, y), radius, 1)
        after = np.where(np.asarray(mask), len(rows) + 1, owners)
        areas = [*sizes, int(np.asarray(mask).sum())]
        hidden = any((after == index + 1).sum() < (1 - _HIDDEN) * area for index, area in enumerate(areas))
        if hidden or len(rows) == _MOST or np.abs(colour - background).max() < 80:
            continue
        draw_form(draw, LABELS[label], (x, y), radius, tuple(int(value) for value in colour))
        owners, sizes = after, areas
        side = 2 * radius + 1
        rows.append((label, (x + 0.5) / _SIDE, (y + 0.5) / _SIDE, side / _SIDE, side / _SIDE))
    return to_png(image), rows
