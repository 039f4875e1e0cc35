"""Pictures with captions: from a table with paths, a folder, or drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.data.sources.base import SourceRequest
from kfp_mindspore.data.sources.formats import read_path, recognise_format
from kfp_mindspore.errors import UserError
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.vision import drawings
from kfp_mindspore.vision.processor import MAX_PIXELS

_IMAGE_FIELDS, _CAPTION_FIELDS = ("image", "file_name", "path"), ("caption", "text")
# A folder's table; `metadata` is Hugging Face's name for it.
_TABLES = ("metadata", "train")
_TABLE_FORMATS = ("csv", "jsonl", "parquet")


@dataclass(frozen=True)
class Pair:
    """A picture with its caption.

    Args:
        image: PNG or JPEG file.
        caption: The text, without blanks at either end.
        origin: Table and row, or file, for messages.
    """

    image: bytes
    caption: str
    origin: str

    @property
    def number(self) -> float:
        """A number from 0 to below 1 by the picture's hash."""
        return int(hashlib.sha256(self.image).hexdigest()[:16], 16) / 2**64


def read_pairs(data: str) -> list[Pair]:
    """Read pictures with their captions.

    Args:
        data: Path or URI of a CSV, JSON lines or Parquet file with a picture's path (`image`, `file_name` or `path`,
            relative to the file) and `caption` or `text`; of a folder with such a file named metadata or train; or of
            a folder with a folder of images for each class, whose name is the caption. `drawings` for drawn ones.

    Raises:
        NotFoundError: There is nothing.
        UserError: A field or a picture is missing, or a caption is empty; the message names the row.
    """
    if data == drawings.NAME and not Path(data).exists():
        drawn = [drawing for drawing in drawings.draw_pictures() if not drawing.held_out]
        return [Pair(drawing.image, drawing.caption, f"{data}: {row}") for row, drawing in enumerate(drawn, 1)]
    with fetch_source(data, hint=f"Give a table of paths and captions, a folder, a URI, or {drawings.NAME}.") as path:
        table = _find_table(path) if path.is_dir() else path
        if table is None:
            columns = read_path(path, SourceRequest(max_pixels=MAX_PIXELS), "images").columns
            return [
                Pair(image, label.decode(), f"{path.name}: image {row}")
                for row, (image, label) in enumerate(zip(columns["image"], columns["label"], strict=True), 1)
            ]
        return _read_table(table)


def _find_table(folder: Path) -> Path | None:
    for file in sorted(folder.iterdir()):
        name = file.name.partition(".")[0]
        if file.is_file() and name in _TABLES and recognise_format(file) in _TABLE_FORMATS:
            return file
    return None


def _read_table(table: Path) -> list[Pair]:
    wanted = frozenset((*_IMAGE_FIELDS, *_CAPTION_FIELDS))
    source = read_path(table, SourceRequest(frozenset(), guess_target=False, optional=wanted))
    chosen = []
    for names in (_IMAGE_FIELDS, _CAPTION_FIELDS):
        found = [name for name in names if name in source.columns]
        if not found:
            raise UserError(
                f"{source.where}: no field {' or '.join(names)}, found {', '.join(source.columns) or 'none'}"
            )
        if source.columns[found[0]].dtype != object:
            raise UserError(f"{source.where}: {found[0]}: must be texts, got {source.columns[found[0]].dtype}")
        chosen.append((found[0], source.columns[found[0]]))
    pairs = []
    (image_field, paths), (caption_field, captions) = chosen
    for row, (path, caption) in enumerate(zip(paths, captions, strict=True), 1):
        origin = f"{table.name}: row {row}"
        text, file = caption.decode().strip(), table.parent / path.decode()
        if not text:
            raise UserError(f"{origin}: {caption_field}: is empty", hint="Write a caption, or remove the row.")
        if not path or not file.is_file():
            raise UserError(
                f"{origin}: {image_field}: no such file {path.decode()!r} beside {table.name}",
                hint="Paths are relative to the table; give the folder's URI if the pictures are in a store.",
            )
        pairs.append(Pair(file.read_bytes(), text, origin))
    return pairs


def hold_out(pairs: Sequence[Pair], part: float) -> tuple[list[Pair], list[Pair]]:
    """Divide pairs by their pictures' hashes, so that equal pictures are in the same part.

    Args:
        pairs: The pairs.
        part: The second list's expected part.

    Raises:
        UserError: All pairs or a part have no two pictures or no two captions that differ: nothing to compare.
    """
    parts = ([pair for pair in pairs if pair.number >= part], [pair for pair in pairs if pair.number < part])
    for name, chosen in zip(("all", "training", "held-out"), (pairs, *parts), strict=True):
        for what, found in (("pictures", {pair.image for pair in chosen}), ("captions", {p.caption for p in chosen})):
            if len(found) < 2:
                raise UserError(
                    f"{name} pairs: must have at least two different {what} to compare, got {len(found)} in "
                    f"{len(chosen)} pairs",
                    hint="Give more different pairs, or another held_out.",
                )
    return parts


def decode_pictures(pairs: Sequence[Pair], decode: DecodeImage) -> NDArray[np.uint8]:
    """Return pictures with 8 bits a channel, uint8 with shape (N, 3, H, W).

    Args:
        pairs: The pairs.
        decode: With a fixed size.

    Raises:
        UserError: A picture cannot be decoded; the message names its row.
    """
    rows = []
    for pair in pairs:
        try:
            (pixels,) = decode.compute(fill_objects([pair.image]))
        except UserError as error:
            raise UserError(f"{pair.origin}: {error.message}", hint=error.hint) from None
        rows.append(np.rint(pixels * 255).astype(np.uint8))
    return np.stack(rows)
