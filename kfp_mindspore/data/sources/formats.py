"""A path's format, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kfp_mindspore.data.sources.arrays import read_npy, read_npz
from kfp_mindspore.data.sources.base import Source, SourceRequest
from kfp_mindspore.data.sources.boxes import read_coco, read_voc, read_yolo, recognise_boxes
from kfp_mindspore.data.sources.content import check_content
from kfp_mindspore.data.sources.delimiters import DELIMITERS, divides, read_start
from kfp_mindspore.data.sources.idx import is_idx, read_idx
from kfp_mindspore.data.sources.images import SUFFIXES as _IMAGES
from kfp_mindspore.data.sources.images import is_image_folder, read_images
from kfp_mindspore.data.sources.mindrecord import read_mindrecord
from kfp_mindspore.data.sources.tables import read_csv, read_json_lines, read_parquet
from kfp_mindspore.data.sources.text import read_text
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import SPLITS

READERS: Mapping[str, Callable[[Path, SourceRequest], Source]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "jsonl": read_json_lines,
    "npz": read_npz,
    "npy": read_npy,
    "idx": read_idx,
    "images": read_images,
    "coco": read_coco,
    "yolo": read_yolo,
    "voc": read_voc,
    "text": read_text,
    "mindrecord": read_mindrecord,
}
_SUFFIXES = {
    ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".tab": "csv",
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".jsonl.gz": "jsonl",
    ".npz": "npz", ".npy": "npy", ".mindrecord": "mindrecord", ".txt": "text",
}  # fmt: skip
_HINTS = {".json": "Write one object a line: jq -c '.[]' FILE > NEW.jsonl"} | dict.fromkeys(
    _IMAGES, "Give the folder that has a folder of images for each class."
)
_FORMAT_HINT = "Give another path, or leave the format out: it is recognised."
_FILES = ("csv", "jsonl", "npz", "npy", "text", "mindrecord")
_FOLDERS = ("images", "coco", "yolo", "voc")
_MAGIC = {b"PAR1": "parquet", b"PK\x03\x04": "npz", b"\x93NUMPY": "npy"}


def read_path(path: Path, request: SourceRequest, kind: str = "") -> Source:
    """Read a file or directory.

    Args:
        path: Local path.
        request: The needed fields.
        kind: A format in `READERS`; empty to recognise it.

    Raises:
        UserError: The format is unknown, or the source does not fit it.
    """
    if kind and kind not in READERS:
        raise ValidationError([f"format: must be one of {', '.join(READERS)}, got {kind!r}"], subject="load_dataset")
    if kind in _FOLDERS and not path.is_dir():
        raise UserError(f"{path.name}: is a file, format {kind} needs a folder", hint=_FORMAT_HINT)
    if kind in _FILES and path.is_dir():
        raise UserError(f"{path.name}: is a directory, format {kind} needs a file", hint=_FORMAT_HINT)
    kind = kind or recognise_format(path)
    check_content(path, kind)
    return READERS[kind](path, request)


def recognise_format(path: Path) -> str:
    """Return a path's format by its name, or by its first bytes for a file with another name.

    Raises:
        UserError: The name is not in `READERS`.
    """
    if path.is_dir():
        return _recognise_directory(path)
    name = path.name.lower()
    if is_idx(path):
        return "idx"
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    with path.open("rb") as file:
        start = file.read(8)
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            return kind
    if not path.suffix and (kind := recognise_text(path)):
        return kind
    raise UserError(
        f"{path.name}: unknown format: expected a name that ends with {', '.join(_SUFFIXES)}, or an IDX file",
        hint=_HINTS.get(path.suffix.lower(), f"Name it: --format {'|'.join(READERS)}, or format=…."),
    )


def recognise_text(path: Path) -> str:
    """Return a file's format by its first lines: JSON lines or CSV; empty for others.

    An artifact of a pipeline has no suffix.
    """
    start = read_start(path)
    if start.lstrip().startswith("{"):
        return "jsonl"
    return "csv" if any(divides(start, mark) for mark in DELIMITERS) else ""


def list_parts(path: Path) -> dict[str, Path]:
    """Return the table files that a folder has by split, such as train.csv and test.csv; its only table is `train`.

    Args:
        path: A directory without `dataset.json`.
    """
    suffixes = tuple(suffix for suffix in _SUFFIXES if suffix != ".txt")
    entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    tables = [entry for entry in entries if entry.is_file() and entry.name.lower().endswith(suffixes)]
    parts = {file.name.partition(".")[0]: file for file in tables if file.name.partition(".")[0] in SPLITS}
    if "train" in parts and (len(parts) == len(tables) or parts["train"].suffix == ".npz"):
        return {split: parts[split] for split in SPLITS if split in parts}
    return {"train": tables[0]} if len(tables) == 1 and not any(map(Path.is_dir, entries)) else {}


def recognise_names(source: str, names: Sequence[str]) -> str:
    """Return the format of an object, or of the objects below a prefix, by their names.

    Args:
        source: The source's name.
        names: Relative names; "" alone is an object.

    Raises:
        UserError: The names have no known format.
    """
    if list(names) == [""]:
        names = [source]
        kinds = {kind for suffix, kind in _SUFFIXES.items() if source.lower().endswith(suffix)}
    else:
        kinds = {"images" for name in names if "/" in name and name.lower().endswith(_IMAGES)}
        kinds = {"parquet" for name in names if name.endswith(".parquet")} or kinds
    if not kinds:
        raise UserError(
            f"{source}: unknown format by its names, such as {names[0]}",
            hint=f"Name it: --format {'|'.join(READERS)}, or format=….",
        )
    return kinds.pop()


def _recognise_directory(path: Path) -> str:
    if any(is_idx(file) for file in path.iterdir()):
        return "idx"
    if next(path.rglob("*.parquet"), None) is not None:
        return "parquet"
    if kind := recognise_boxes(path):
        return kind
    if is_image_folder(path):
        return "images"
    found = sorted(file.name for file in path.iterdir())[:5]
    raise UserError(
        f"{path}: unknown format: expected dataset.json, one table, train.csv and test.csv (or .parquet, .npz, …), a "
        "folder of images for each class, images with COCO, YOLO or VOC boxes, IDX or Parquet files, found "
        + (", ".join(found) or "nothing"),
        hint=next((_HINTS[file.suffix.lower()] for file in path.iterdir() if file.suffix.lower() in _IMAGES), ""),
    )
