"""Pictures with boxes: three formats with the same content, and each mistake that a format can have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.report import render_report
from kfp_mindspore.errors import UserError
from tests.support.box_folders import LABELS, PICTURES, SPLITS, WRITERS, write_coco, write_voc, write_yolo


def load_boxes(path: Path, **options):
    return load_dataset(str(path), path.with_name("dataset"), **{"image_size": (20, 20), **options})


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("kind", WRITERS)
def test_formats_have_same_boxes_splits_and_pictures(kind: str, tmp_path: Path) -> None:
    dataset = load_boxes(WRITERS[kind](tmp_path / "given"))
    assert (dataset.task, dataset.labels, dataset.splits) == (
        "detection",
        LABELS,
        {"train": 2, "validation": 1, "test": 1},
    )
    for name, (size, boxes) in PICTURES.items():
        split = {"val": "validation"}.get(SPLITS[name], SPLITS[name])
        names = [other for other, given in SPLITS.items() if given == SPLITS[name]]
        rows = dataset.read_columns(split)["boxes"][names.index(name)]
        kept = rows[rows[:, 0] >= 0]
        expected = [
            (
                label,
                (left + right) / 2 / size[0],
                (top + bottom) / 2 / size[1],
                (right - left) / size[0],
                (bottom - top) / size[1],
            )
            for label, left, top, right, bottom in boxes
        ]
        np.testing.assert_allclose(kept, np.reshape(expected, (-1, 5)), atol=1e-6)
    samples = read_samples(dataset, "train")
    assert samples.inputs["image"].shape == (2, 3, 20, 20)
    assert samples.target.shape == (2, 3, 5)
    report = render_report(dataset)
    assert "boxes in train: 2, at most 2 a picture, 1 pictures without" in report
    assert "warning: no sample of owl in train" in report


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"bbox": [0, 0, 10, 10]',
            '"bbox": [35, 0, 10, 10]',
            "annotation 0: the box 35, 0, 10, 10 lies outside the picture, 40 x 20",
        ),
        ('"bbox": [0, 0, 10, 10]', '"bbox": [0, 0, 0, 10]', "annotation 0: the box 0, 0, 0, 10 is empty"),
        (
            '"bbox": [0, 0, 10, 10]',
            '"bbox": [10, 10, -10, -10]',
            "the box 10, 10, -10, -10 has swapped corners",
        ),
        (
            '"bbox": [0, 0, 10, 10]',
            '"bbox": [0, 0, 0.25, 0.5]',
            "the box 0, 0, 0.25, 0.5 is in fractions, expected pixels",
        ),
        ('"bbox": [0, 0, 10, 10]', '"bbox": [0, 0, 10]', "annotation 0: the box must have four numbers"),
        ('"bbox": [0, 0, 10, 10]', '"bbox": [0, 0, "ten", 10]', "annotation 0: the box must have four numbers"),
        ('"category_id": 1,', '"category_id": 7,', "annotation 0: unknown class 7, expected 1, 11, 21"),
        ('"file_name": "a.png"', '"file_name": "z.png"', "image 0: the picture z.png is missing"),
        ('"image_id": 0', '"image_id": 9', "annotation 0: the picture with id 9 is missing"),
        ('"width": 40', '"width": 80', "train/a.png: has 40 x 20 pixels, the annotations say 80 x 20"),
    ],
)
def test_coco_mistake_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    root = write_coco(tmp_path / "given")
    edit(root / "annotations" / "instances_train.json", old, new)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_boxes(root)
    assert "given (coco): 1 mistake\n" in caught.value.message
    assert "--missing drop" in caught.value.hint
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "0 20 10 40 20",
            "train/a.txt: line 3: the box 20, 10, 40, 20 is in pixels, expected fractions",
        ),
        ("0 0.5 0.5 1.5 0.5", "line 3: the box 0.5, 0.5, 1.5, 0.5 lies outside the picture"),
        ("0 0.5 0.5 0 0.5", "line 3: the box 0.5, 0.5, 0, 0.5 is empty"),
        ("0 0.5 0.5 -0.2 0.5", "line 3: the box 0.5, 0.5, -0.2, 0.5 has swapped corners"),
        ("3 0.5 0.5 0.2 0.5", "line 3: unknown class 3, expected 0 to 2"),
        ("cat 0.5 0.5 0.2 0.5", "line 3: unknown class cat, expected 0 to 2"),
        ("0 0.5 0.5", "line 3: must be class, centre x, centre y, width, height, got 0 0.5 0.5"),
    ],
)
def test_yolo_mistake_is_named(line: str, message: str, tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "given")
    with (root / "labels" / "train" / "a.txt").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(UserError, match=re.escape(message)):
        load_boxes(root)


def test_yolo_labels_without_picture_or_names_are_refused(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "given")
    (root / "images" / "train" / "a.png").unlink()
    with pytest.raises(UserError, match=re.escape("labels/train/a.txt: the picture a is missing")):
        load_boxes(root)
    (root / "data.yaml").unlink()
    with pytest.raises(UserError, match="the class names are missing") as caught:
        load_boxes(root)
    assert "names: [cat, dog]" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<xmax>10</xmax>", "<xmax>0</xmax>", "Annotations/a.xml: object 1: the box 1, 1, 0, 10 is empty"),
        ("<xmin>21</xmin>", "<xmin>45</xmin>", "a.xml: object 2: the box 45, 6, 40, 20 has swapped corners"),
        (
            "<xmax>40</xmax>",
            "<xmax>50</xmax>",
            "object 2: the box 21, 6, 50, 20 lies outside the picture",
        ),
        ("<name>cat</name>", "<name></name>", "object 1: has no class name"),
        ("<filename>a.png</filename>", "<filename>z.png</filename>", "a.xml: the picture z.png is missing"),
        (
            "<xmin>1</xmin><ymin>1</ymin><xmax>10</xmax><ymax>10</ymax>",
            "<xmin>0.1</xmin><ymin>0.1</ymin><xmax>1</xmax><ymax>1</ymax>",
            "is in fractions, expected pixels",
        ),
        ("<xmin>1</xmin>", "", "object 1: the box must have four numbers"),
    ],
)
def test_voc_mistake_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    root = write_voc(tmp_path / "given")
    edit(root / "Annotations" / "a.xml", old, new)
    with pytest.raises(UserError, match=re.escape(message)):
        load_boxes(root)


def test_wrong_boxes_are_left_out_on_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_coco(tmp_path / "given")
    edit(root / "annotations" / "instances_train.json", '"bbox": [0, 0, 10, 10]', '"bbox": [0, 0, 0, 10]')
    dataset = load_boxes(root, missing="drop")
    assert (dataset.read_columns("train")["boxes"][..., 0] >= 0).sum() == 1
    assert "left out: annotations/instances_train.json: annotation 0" in caplog.text


def test_box_up_to_a_pixel_outside_is_clipped(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "given", dict.fromkeys("acd", ((40, 20), [(0, -1, 0, 41, 20)])))
    boxes = load_boxes(root).read_columns("train")["boxes"]
    np.testing.assert_allclose(boxes[0, 0], [0, 0.5, 0.5, 1, 1])


@pytest.mark.parametrize("kind", WRITERS)
def test_folder_without_any_box_is_refused(kind: str, tmp_path: Path) -> None:
    root = WRITERS[kind](tmp_path / "given", {"a": ((40, 20), []), "b": ((40, 20), [])})
    with pytest.raises(UserError, match="none of the 2 pictures has a box"):
        load_boxes(root)


@pytest.mark.parametrize("kind", ["coco", "yolo"])
def test_boxes_of_one_class_keep_all_labels(kind: str, tmp_path: Path) -> None:
    pictures = {name: ((40, 20), [(1, 0, 0, 10, 10)]) for name in "acd"}
    dataset = load_boxes(WRITERS[kind](tmp_path / "given", pictures))
    assert dataset.labels == LABELS
    assert dataset.report["missing_classes"]["train"] == ["cat", "owl"]


def test_crowds_are_left_out(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "given")
    file = root / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["iscrowd"] = 1
    file.write_text(json.dumps(content))
    assert (load_boxes(root).read_columns("train")["boxes"][..., 0] >= 0).sum() == 1


def test_drawn_scenes_have_forms_within_the_picture(tmp_path: Path) -> None:
    dataset = load_dataset("scenes", tmp_path / "dataset", limit=200)
    boxes = read_samples(dataset, "train").target
    kept = boxes[boxes[..., 0] >= 0]
    assert set(kept[:, 0].astype(int)) == {0, 1, 2, 3}
    assert ((kept[:, 1:3] - kept[:, 3:] / 2 >= -1e-6) & (kept[:, 1:3] + kept[:, 3:] / 2 <= 1 + 1e-6)).all()
    assert dataset.report["boxes"]["train"]["empty"] > 0
