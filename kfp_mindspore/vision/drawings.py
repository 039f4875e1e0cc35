"""Drawn pictures of one form each, with captions; no download is needed."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore import files
from kfp_mindspore.errors import require_extra
from kfp_mindspore.outputs import OutputKind

NAME = "drawings"
COLOURS = {
    "red": (215, 35, 35),
    "green": (40, 160, 50),
    "blue": (40, 70, 215),
    "yellow": (240, 215, 40),
    "purple": (135, 45, 165),
    "orange": (245, 130, 25),
}
# Each form's corners on a circle, as (turn in degrees, radius); a circle has none.
_FORMS: dict[str, list[tuple[float, float]]] = {
    "circle": [],
    "square": [(turn, 1.0) for turn in (45, 135, 225, 315)],
    "triangle": [(turn, 1.0) for turn in (-90, 30, 150)],
    "star": [(36 * corner - 90, 0.42 if corner % 2 else 1.1) for corner in range(10)],
    "cross": [(90 * arm + turn, 1.0 if abs(turn) < 45 else 0.45) for arm in range(4) for turn in (-18, 18, 45)],
    "crescent": [],
}
FORMS = tuple(_FORMS)
# Each place's centre, as parts of the width and the height.
PLACES = {
    "at the top left": (0.27, 0.27),
    "at the top right": (0.73, 0.27),
    "in the centre": (0.5, 0.5),
    "at the bottom left": (0.27, 0.73),
    "at the bottom right": (0.73, 0.73),
}
TRAIN_FILE, HELD_OUT_FILE = "train.jsonl", "held_out.jsonl"
_OUTPUT = OutputKind(TRAIN_FILE, names=(HELD_OUT_FILE, "images"))
# Pictures are drawn larger and reduced, so that edges are smooth.
_SCALE = 4


@dataclass(frozen=True)
class Drawing:
    """A picture with its caption.

    Args:
        image: PNG file.
        caption: Such as "a red circle at the top left".
        held_out: Whether no training picture has this combination of form, colour and place.
    """

    image: bytes
    caption: str
    held_out: bool


def draw_pictures(pictures: int = 20, *, side: int = 32, seed: int = 0) -> list[Drawing]:
    """Return pictures of the 180 combinations of form, colour and place, in random order.

    Of the five places, each pair of a form and a colour has one held out: 36 combinations, in which every form, colour
    and place, and every pair of them, is known from others.

    Args:
        pictures: For each combination.
        side: Width and height in pixels.
        seed: Seed for positions, sizes, shades, backgrounds and the order.
    """
    random, drawings = np.random.default_rng(seed), []
    for (row, form), (column, colour), (number, place) in itertools.product(
        enumerate(FORMS), enumerate(COLOURS), enumerate(PLACES)
    ):
        article = "an" if colour[0] in "aeiou" else "a"
        caption = f"{article} {colour} {form} {place}"
        held_out = (row + column + number) % len(PLACES) == 0
        drawings += [Drawing(_draw(form, colour, place, side, random), caption, held_out) for _ in range(pictures)]
    return [drawings[index] for index in random.permutation(len(drawings))]


def write_drawings(directory: Path, drawings: Sequence[Drawing]) -> None:
    """Write train.jsonl and held_out.jsonl, with `image` and `caption`, and the folder `images`.

    Args:
        directory: Replaced when it has drawings.
        drawings: See `draw_pictures`.

    Raises:
        UserError: The directory has other content.
    """
    with files.replace_directory(directory, _OUTPUT) as written:
        (written / "images").mkdir()
        lines: dict[bool, list[str]] = {False: [], True: []}
        for number, drawing in enumerate(drawings):
            name = f"images/{number:05d}.png"
            (written / name).write_bytes(drawing.image)
            lines[drawing.held_out].append(json.dumps({"image": name, "caption": drawing.caption}) + "\n")
        for held_out, name in ((False, TRAIN_FILE), (True, HELD_OUT_FILE)):
            (written / name).write_text("".join(lines[held_out]))


def _draw(form: str, colour: str, place: str, side: int, random: np.random.Generator) -> bytes:
    with require_extra("PIL", "train"):
        from PIL import Image, ImageDraw
    size = side * _SCALE
    background = int(random.integers(0, 2)) * 195 + int(random.integers(0, 60))
    image = Image.new("RGB", (size, size), (background,) * 3)
    draw = ImageDraw.Draw(image)
    x, y = (size * (part + float(random.uniform(-0.06, 0.06))) for part in PLACES[place])
    radius = size * float(random.uniform(0.13, 0.2))
    shade = random.integers(-18, 19, 3)
    fill: Any = tuple(np.clip(np.array(COLOURS[colour]) + shade, 0, 255).tolist())
    if corners := _FORMS[form]:
        turns = ((math.radians(turn), radius * part) for turn, part in corners)
        draw.polygon([(x + far * math.cos(turn), y + far * math.sin(turn)) for turn, far in turns], fill)
    else:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill)
    if form == "crescent":
        x += 0.55 * radius
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), (background,) * 3)
    buffer = io.BytesIO()
    image.resize((side, side), Image.Resampling.BOX).save(buffer, "PNG")
    return buffer.getvalue()
