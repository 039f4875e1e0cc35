"""Pictures with boxes: COCO JSON, YOLO text files and Pascal VOC folders.

The field `boxes` has shape (M, 5) for the picture with the most boxes, M: class, centre x, centre y, width and height,
as fractions of the picture; other rows have class -1. Resizing a picture does not change them.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import yaml

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.data.sources.images import SUFFIXES, read_files
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import SPLITS
from kfp_mindspore.formats.names import normalize_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kfp_mindspore.transform.images import DecodeImage

_logger = logging.getLogger(__name__)
_SHOWN = 10
_WORDS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
_UNITS = {"coco": "pixels", "voc": "pixels", "yolo": "fractions of the picture"}
_EMPTY_HINT = (
    "Check that the folder has the annotations too, see docs/data.md, or name the format: --format coco|yolo|voc."
)
_HINT = "Correct them, or leave these boxes out: --missing drop (missing='drop')."


@dataclass(frozen=True)
class _Box:
    """A box as written.

    Args:
        where: File and line or annotation.
        label: Class index.
        given: The four numbers in the file.
        corners: Left, top, right and bottom in the file's unit.
    """

    where: str
    label: int
    given: Sequence[float]
    corners: Sequence[float]


@dataclass
class _Annotations:
    """Annotations of a folder.

    Args:
        root: The folder.
        labels: Class names.
        boxes: Boxes by picture.
        splits: Split by picture, "" where none is named.
        sizes: Width and height by picture, where a file states them.
        findings: Mistakes.
    """

    root: Path
    labels: list[str] = field(default_factory=list)
    boxes: dict[Path, list[_Box]] = field(default_factory=dict)
    splits: dict[Path, str] = field(default_factory=dict)
    sizes: dict[Path, tuple[int, int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._files: dict[str, list[Path]] = {}
        for file in list_files(self.root, *SUFFIXES):
            for name in (file.name, file.stem):
                self._files.setdefault(name, []).append(file)

    def find(self, name: str, split: str, where: str) -> Path | None:
        """Return a picture by name, in the split's folder where there are several; a missing one is a finding."""
        files = self._files.get(Path(name).name, [])
        found = [file for file in files if file.as_posix().endswith(f"/{name}")] or files
        chosen = [file for file in found if find_split(file.relative_to(self.root)) == split] or found
        if not chosen:
            self.findings.append(f"{where}: the picture {name or '(no name)'} is missing")
            return None
        self.boxes.setdefault(chosen[0], [])
        self.splits.setdefault(chosen[0], split)
        return chosen[0]

    def name(self, file: Path) -> str:
        """Return a file's name for messages."""
        return file.relative_to(self.root).as_posix()


def list_files(path: Path, *suffixes: str) -> list[Path]:
    """Return the files below a folder with one of the suffixes, in name order."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in suffixes and not file.name.startswith(".") and file.is_file()
    )


def recognise_boxes(path: Path) -> str:
    """Return `coco`, `yolo` or `voc` for a folder with such annotations, else an empty text."""
    if any(file.is_dir() and file.name == "labels" for file in path.rglob("labels")):
        return "yolo"
    if any(b"<annotation" in file.read_bytes() for file in list_files(path, ".xml")[:1]):
        return "voc"
    return "coco" if any(b'"annotations"' in file.read_bytes() for file in list_files(path, ".json")) else ""


def find_split(path: Path) -> str:
    """Return the split that a path's words name, such as instances_val2017.json; empty for none."""
    words = re.split(r"[^a-z]+", path.as_posix().lower())
    return next((_WORDS[word] for word in reversed(words) if word in _WORDS), "")


def read_coco(path: Path, request: SourceRequest) -> Source:
    """Read a folder's COCO files; a file's or its folder's name may name the split.

    Groups of objects (`iscrowd`) are left out.
    """
    found, files = _Annotations(path), list_files(path, ".json")
    contents = [(file, _parse_json(file)) for file in files]
    contents = [(file, content) for file, content in contents if isinstance(content, dict) and "images" in content]
    names = {
        int(entry["id"]): normalize_name(str(entry["name"]))
        for _, content in contents
        for entry in content.get("categories", [])
    }
    found.labels = list(dict.fromkeys(names[key] for key in sorted(names)))
    for file, content in contents:
        split, pictures = find_split(file.relative_to(path)), {}
        for entry in content["images"]:
            where = f"{found.name(file)}: image {entry.get('id')}"
            picture = pictures[entry.get("id")] = found.find(str(entry.get("file_name", "")), split, where)
            if picture and entry.get("width") and entry.get("height"):
                found.sizes[picture] = (int(entry["width"]), int(entry["height"]))
        for entry in content.get("annotations", []):
            where = f"{found.name(file)}: annotation {entry.get('id')}"
            if entry.get("iscrowd"):
                continue
            if entry.get("image_id") not in pictures:
                found.findings.append(f"{where}: the picture with id {entry.get('image_id')} is missing")
            elif entry.get("category_id") not in names:
                ids = ", ".join(map(str, sorted(names)[:_SHOWN]))
                found.findings.append(f"{where}: unknown class {entry.get('category_id')}, expected {ids or 'none'}")
            elif picture := pictures[entry["image_id"]]:
                given = _to_numbers(entry.get("bbox", ()))
                corners = (*given[:2], given[0] + given[2], given[1] + given[3]) if len(given) == 4 else ()
                label = found.labels.index(names[entry["category_id"]])
                found.boxes[picture].append(_Box(where, label, given, corners))
    return _build("coco", found, request)


def read_yolo(path: Path, request: SourceRequest) -> Source:
    """Read images/…/NAME.jpg with labels/…/NAME.txt, and the class names in data.yaml or classes.txt.

    A line is class, centre x, centre y, width and height; a picture without a file has no box.
    """
    found = _Annotations(path, _read_names(path))
    pictures = {
        file: path.joinpath(*("labels" if part == "images" else part for part in file.relative_to(path).parts))
        for file in list_files(path, *SUFFIXES)
        if "images" in file.relative_to(path).parts
    }
    texts = {file.with_suffix("") for file in list_files(path, ".txt") if "labels" in file.relative_to(path).parts}
    for missing in sorted(texts - {file.with_suffix("") for file in pictures.values()}):
        found.findings.append(f"{found.name(missing)}.txt: the picture {missing.name} is missing")
    for picture, other in pictures.items():
        file = other.with_suffix(".txt")
        found.boxes[picture], found.splits[picture] = [], find_split(picture.relative_to(path).parent)
        lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
        for number, line in enumerate(lines, 1):
            where, values = f"{found.name(file)}: line {number}", _to_numbers(line.split())
            if len(values) not in (0, 5):
                found.findings.append(f"{where}: must be class, centre x, centre y, width, height, got {line:.60}")
            elif values and values[0] not in range(len(found.labels)):
                last = len(found.labels) - 1
                found.findings.append(f"{where}: unknown class {line.split()[0]}, expected 0 to {last}")
            elif values:
                x, y, width, height = values[1:]
                corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                found.boxes[picture].append(_Box(where, int(values[0]), values[1:], corners))
    return _build("yolo", found, request)


def read_voc(path: Path, request: SourceRequest) -> Source:
    """Read XML files with the name of their picture; ImageSets/Main/{train,val,test}.txt may name the splits.

    The classes are those found. A box's first pixel is 1, its last one belongs to it.
    """
    found = _Annotations(path)
    splits = {
        name.strip(): find_split(Path(file.name))
        for file in list_files(path, ".txt")
        if file.parent.name == "Main" and file.stem in _WORDS
        for name in file.read_text("utf-8", "replace").splitlines()
    }
    roots = [(file, _parse_xml(file)) for file in list_files(path, ".xml")]
    roots = [(file, root) for file, root in roots if root.tag == "annotation"]
    names = {normalize_name(item.findtext("name") or "") for _, root in roots for item in root.iter("object")}
    found.labels = sorted(names - {""})
    for file, root in roots:
        split = splits.get(file.stem) or find_split(file.relative_to(path).parent)
        picture = found.find((root.findtext("filename") or file.stem).strip(), split, found.name(file))
        for number, item in enumerate(root.iter("object"), 1):
            where, label = f"{found.name(file)}: object {number}", normalize_name(item.findtext("name") or "")
            if not label:
                found.findings.append(f"{where}: has no class name")
            elif picture:
                keys = ("xmin", "ymin", "xmax", "ymax")
                given = _to_numbers([item.findtext(f"bndbox/{key}") or "" for key in keys])
                corners = (given[0] - 1, given[1] - 1, *given[2:]) if given else ()
                found.boxes[picture].append(_Box(where, found.labels.index(label), given, corners))
    return _build("voc", found, request)


def _build(kind: str, found: _Annotations, request: SourceRequest) -> Source:
    """Read the pictures, check the boxes, and return the source.

    Raises:
        UserError: A picture or box is wrong, or there is none.
    """
    import numpy as np

    from kfp_mindspore.transform.images import read_shown_size

    where = f"{found.root.name} ({kind})"
    files = list(found.boxes)
    if not files:
        _refuse(where, found.findings or ["no picture with annotations was found"], _EMPTY_HINT)
    contents, _ = read_files(files, request.max_pixels)
    rows, sizes = [], [read_shown_size(content) for content in contents]
    for file, (height, width) in zip(files, sizes, strict=True):
        if found.sizes.get(file, (width, height)) != (width, height):
            stated = " x ".join(map(str, found.sizes[file]))
            found.findings.append(f"{found.name(file)}: has {width} x {height} pixels, the annotations say {stated}")
        checked = [(box, _check(box, (width, height), _UNITS[kind])) for box in found.boxes[file]]
        found.findings += [result for _, result in checked if isinstance(result, str)]
        rows.append([(box.label, *result) for box, result in checked if not isinstance(result, str)])
    if found.findings and not request.drop_boxes:
        _refuse(where, found.findings)
    for finding in found.findings:
        _logger.warning("%s: left out: %s", where, finding)
    if not any(rows):
        _refuse(where, [f"none of the {len(files)} pictures has a box"], _EMPTY_HINT)
    size = request.image_size or Counter(sizes).most_common(1)[0][0]
    columns = {"image": to_objects(contents), "boxes": pad_boxes(rows)}
    select_fields(where, request, list(columns))
    given = [found.splits[file] for file in files]
    splits = np.array([SPLITS.index(split or "train") for split in given], np.int8) if any(given) else None
    labels = tuple(found.labels)
    steps = (build_step(size),)
    return Source("images", where, columns, ("boxes",), labels, "detection", splits=splits, steps=steps)


def build_step(size: Sequence[int]) -> DecodeImage:
    """Return the step that stretches pictures to a size, as an exported detector does."""
    from kfp_mindspore.transform.images import DecodeImage

    return DecodeImage("RGB", resize=size, resample="bilinear", rotate=True, column="image")


def pad_boxes(rows: Sequence[Sequence[Sequence[float]]]) -> NDArray[np.float32]:
    """Return each picture's boxes (class, box) as float32 (N, M, 5), missing rows with class -1."""
    import numpy as np

    padded = np.zeros((len(rows), max(map(len, rows)), 5), np.float32)
    padded[..., 0] = -1
    for index, boxes in enumerate(rows):
        if boxes:
            padded[index, : len(boxes)] = boxes
    return padded


def _check(box: _Box, size: tuple[int, int], unit: str) -> tuple[float, float, float, float] | str:
    """Return the box as fractions, at most a pixel clipped at the border, or the mistake."""
    shown = f"{box.where}: the box {', '.join(f'{number:g}' for number in box.given)}"
    if len(box.corners) != 4 or not all(map(math.isfinite, box.corners)):
        return f"{box.where}: the box must have four numbers"
    is_pixels = unit == "pixels"
    largest = max(map(abs, box.given))
    if largest > 2 and not is_pixels:
        return f"{shown} is in pixels, expected {unit}"
    if largest <= 1 and is_pixels and min(size) > 1:
        return f"{shown} is in fractions, expected {unit}"
    width, height = size if is_pixels else (1, 1)
    left, top, right, bottom = (
        corner / side for corner, side in zip(box.corners, (width, height, width, height), strict=True)
    )
    if right < left or bottom < top:
        return f"{shown} has swapped corners"
    if right == left or bottom == top:
        return f"{shown} is empty"
    across, down = 1 / size[0], 1 / size[1]
    limits = min(left / across, top / down, (1 - right) / across, (1 - bottom) / down)
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, 1.0), min(bottom, 1.0)
    if limits < -1.001 or right <= left or bottom <= top:
        return f"{shown} lies outside the picture, {size[0]} x {size[1]} pixels"
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _refuse(where: str, findings: Sequence[str], hint: str = _HINT) -> None:
    shown = [*findings[:_SHOWN], *([f"and {len(findings) - _SHOWN} more"] if len(findings) > _SHOWN else [])]
    raise UserError("\n".join([f"{where}: {len(findings)} mistake{'s' * (len(findings) > 1)}", *shown]), hint=hint)


def _read_names(path: Path) -> list[str]:
    """Return the class names of a YOLO folder."""
    for file in list_files(path, ".yaml", ".yml"):
        content = yaml.safe_load(file.read_text("utf-8"))
        names = content.get("names") if isinstance(content, dict) else None
        if isinstance(names, dict):
            names = [names[key] for key in sorted(names)]
        if names:
            return [normalize_name(str(name)) for name in names]
    for file in list_files(path, ".txt"):
        if file.name == "classes.txt":
            return [normalize_name(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    raise UserError(
        f"{path.name} (yolo): the class names are missing",
        hint="Write data.yaml beside images and labels, with a line such as: names: [cat, dog]",
    )


def _to_numbers(values: Iterable[Any]) -> list[float]:
    """Return numbers, NaN for what is none."""
    found = []
    for value in values:
        try:
            found.append(float(value))
        except (TypeError, ValueError):
            found.append(math.nan)
    return found


def _parse_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file}: is no JSON file ({error})", hint="Export the annotations again.") from None


def _parse_xml(file: Path) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(file.read_bytes())
    except ElementTree.ParseError as error:
        raise UserError(f"{file}: is no XML file ({error})", hint="Export the annotations again.") from None
