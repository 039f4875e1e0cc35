"""A detector's answers as lists, and as pictures with boxes. MindSpore is not imported."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.outputs import check_output_file, has_mark

_MARK = "boxes by kfp-mindspore"
# Colours by a label's place among a picture's labels (Okabe and Ito, told apart by most eyes).
_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")


def list_detections(outputs: Mapping[str, NDArray[Any]]) -> list[list[dict[str, Any]]]:
    """Return each picture's boxes as `label`, `score` and `box`, the likeliest first.

    Args:
        outputs: `SelectBoxes`' results.

    Returns:
        `box` has left, top, right and bottom in the picture's pixels.
    """
    columns = [outputs[name] for name in ("labels", "scores", "boxes")]
    return [
        sorted(
            (
                {"label": label.decode(), "score": float(score), "box": box.tolist()}
                for label, score, box in zip(*(column[row][:count] for column in columns), strict=True)
            ),
            key=lambda found: -float(found["score"]),
        )
        for row, count in enumerate(outputs["count"])
    ]


def draw_detections(picture: bytes, detections: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a PNG file of a picture with boxes, labels and scores.

    Args:
        picture: A PNG or JPEG file; it is drawn as it is shown, after its EXIF rotation.
        detections: See `list_detections`.
    """
    from PIL import Image, ImageDraw, ImageOps, PngImagePlugin

    image = ImageOps.exif_transpose(Image.open(io.BytesIO(picture))).convert("RGB")
    draw, line = ImageDraw.Draw(image), max(1, round(min(image.size) / 200))
    labels = sorted({found["label"] for found in detections})
    # The likeliest last, above the others.
    for found in reversed(detections):
        colour, box = _COLOURS[labels.index(found["label"]) % len(_COLOURS)], found["box"]
        draw.rectangle([*map(min, box[:2], box[2:]), *map(max, box[:2], box[2:])], outline=colour, width=line)
        text, place = f"{found['label']} {found['score']:.2f}", (max(box[0], 0), max(box[1], 0))
        draw.rectangle(draw.textbbox(place, text), fill=colour)
        draw.text(place, text, fill="black")
    information, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    information.add_text("Comment", _MARK)
    image.save(buffer, "PNG", pnginfo=information)
    return buffer.getvalue()


def write_detections(path: Path, picture: bytes, detections: Sequence[Mapping[str, Any]]) -> None:
    """Write `draw_detections`' picture; an earlier one is replaced.

    Args:
        path: The file; its name ends with .png.
        picture: See `draw_detections`.
        detections: See `list_detections`.

    Raises:
        UserError: The name has another end, or the file has other content.
    """
    check_drawn(path)
    files.write_bytes(path, draw_detections(picture, detections))


def check_drawn(path: Path, inputs: Sequence[Path | None] = ()) -> None:
    """Refuse a picture to write, before it is computed.

    Args:
        path: The file.
        inputs: What is read.

    Raises:
        UserError: It does not end with .png, has other content, or is an input.
    """
    if path.suffix != ".png":
        raise UserError(
            f"{path}: must end in .png, as a detector's boxes are drawn, got {path.suffix or 'no suffix'!r}"
        )
    check_output_file(path, "a picture with boxes", lambda file: has_mark(file, _MARK), inputs)
