"""The same annotated pictures as COCO, YOLO and Pascal VOC folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

LABELS = ("cat", "dog", "owl")
# Width and height, and (class, left, top, right, bottom) in pixels.
Picture = tuple[tuple[int, int], Sequence[tuple[int, int, int, int, int]]]
PICTURES: Mapping[str, Picture] = {
    "a": ((40, 20), [(0, 0, 0, 10, 10), (1, 20, 5, 40, 20)]),
    "b": ((40, 20), []),
    "c": ((20, 20), [(2, 1, 2, 11, 12)]),
    "d": ((40, 20), [(1, 4, 4, 8, 8), (1, 10, 4, 30, 16), (0, 0, 0, 40, 20)]),
}
SPLITS = {"a": "train", "b": "train", "c": "val", "d": "test"}


def _draw(path: Path, size: tuple[int, int], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_coco(root: Path, pictures: Mapping[str, Picture] = PICTURES) -> Path:
    """Write annotations/instances_SPLIT.json and SPLIT/NAME.png; IDs of classes are 1, 11, 21."""
    (root / "annotations").mkdir(parents=True)
    for split in dict.fromkeys(SPLITS.get(name, "train") for name in pictures):
        content: dict[str, Any] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": 10 * index + 1, "name": name} for index, name in enumerate(LABELS)],
        }
        for index, (name, (size, boxes)) in enumerate(pictures.items()):
            if SPLITS.get(name, "train") != split:
                continue
            _draw(root / split / f"{name}.png", size, index)
            content["images"].append({"id": index, "file_name": f"{name}.png", "width": size[0], "height": size[1]})
            content["annotations"] += [
                {
                    "id": 100 * index + number,
                    "image_id": index,
                    "category_id": 10 * label + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "iscrowd": 0,
                }
                for number, (label, left, top, right, bottom) in enumerate(boxes)
            ]
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def write_yolo(root: Path, pictures: Mapping[str, Picture] = PICTURES) -> Path:
    """Write data.yaml, images/SPLIT/NAME.png and labels/SPLIT/NAME.txt, which a picture without a box has not."""
    for index, (name, (size, boxes)) in enumerate(pictures.items()):
        split = SPLITS.get(name, "train")
        _draw(root / "images" / split / f"{name}.png", size, index)
        (root / "labels" / split).mkdir(parents=True, exist_ok=True)
        lines = [
            f"{label} {(left + right) / 2 / size[0]} {(top + bottom) / 2 / size[1]} "
            f"{(right - left) / size[0]} {(bottom - top) / size[1]}"
            for label, left, top, right, bottom in boxes
        ]
        if lines:
            (root / "labels" / split / f"{name}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(f"names: [{', '.join(LABELS)}]\n")
    return root


def write_voc(root: Path, pictures: Mapping[str, Picture] = PICTURES) -> Path:
    """Write JPEGImages/NAME.png, Annotations/NAME.xml and ImageSets/Main/SPLIT.txt."""
    (root / "Annotations").mkdir(parents=True)
    (root / "ImageSets" / "Main").mkdir(parents=True)
    for index, (name, (size, boxes)) in enumerate(pictures.items()):
        _draw(root / "JPEGImages" / f"{name}.png", size, index)
        objects = "".join(
            f"<object><name>{LABELS[label]}</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
            f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for label, left, top, right, bottom in boxes
        )
        text = f"<annotation><filename>{name}.png</filename>{objects}</annotation>"
        (root / "Annotations" / f"{name}.xml").write_text(text)
        with (root / "ImageSets" / "Main" / f"{SPLITS.get(name, 'train')}.txt").open("a") as file:
            file.write(f"{name}\n")
    return root


WRITERS = {"coco": write_coco, "yolo": write_yolo, "voc": write_voc}
