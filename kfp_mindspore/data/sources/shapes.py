"""Drawn images of shapes: image files for networks that are made for photos; no download is needed."""

from __future__ import annotations

import io
from typing import Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.errors import require_extra

NAME = "shapes"
LABELS = ("circle", "cross", "square", "triangle")
_COUNT = 600
_SIDE = 64


def read_shapes(request: SourceRequest) -> Source:
    """Draw 600 images with one shape each.

    The field `image` has PNG files with 64×64 RGB pixels: a shape in a random colour, size and place on a noisy
    background; `label` has four classes.

    Raises:
        UserError: A field is missing.
        MissingExtraError: Pillow is not installed.
    """
    import numpy as np

    from kfp_mindspore.transform.images import DecodeImage, Resize

    where = f"{NAME} (drawn)"
    generator = np.random.default_rng(0)
    names = [LABELS[index % len(LABELS)] for index in range(_COUNT)]
    columns = {
        "image": to_objects([_draw(name, generator) for name in names]),
        "label": to_objects([name.encode() for name in names]),
    }
    select_fields(where, request, list(columns))
    steps = (DecodeImage(column="image"), Resize(request.image_size or (_SIDE, _SIDE), column="image"))
    return Source("PNG", where, columns, target=("label",), task="classification", steps=steps)


def _draw(name: str, generator: Any) -> bytes:
    """Return a PNG file."""
    import numpy as np

    with require_extra("PIL", "train"):
        from PIL import Image, ImageDraw
    background, colour = generator.integers(0, 110, 3), generator.integers(120, 256, 3)
    if generator.random() < 0.5:
        background, colour = colour, background
    noise = generator.normal(0, 8, (_SIDE, _SIDE, 3))
    image = Image.fromarray(np.clip(background + noise, 0, 255).astype(np.uint8))
    radius = int(generator.integers(14, 26))
    x, y = (int(place) for place in generator.integers(radius + 2, _SIDE - radius - 2, 2))
    draw_form(ImageDraw.Draw(image), name, (x, y), radius, tuple(int(value) for value in colour))
    return to_png(image)


def draw_form(draw: Any, name: str, centre: tuple[int, int], radius: int, fill: Any) -> None:
    """Draw a form of `LABELS` that reaches `radius` pixels from its centre."""
    (x, y), width = centre, max(radius // 3, 3)
    left, top, right, bottom = x - radius, y - radius, x + radius, y + radius
    if name == "circle":
        draw.ellipse((left, top, right, bottom), fill)
    elif name == "square":
        draw.rectangle((left, top, right, bottom), fill)
    elif name == "triangle":
        draw.polygon([(x, top), (left, bottom), (right, bottom)], fill)
    else:
        draw.rectangle((x - width, top, x + width, bottom), fill)
        draw.rectangle((left, y - width, right, y + width), fill)


def to_png(image: Any) -> bytes:
    """Return a Pillow image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
