"""Texts, lists and images that do not fit: one message each, with file, place, found, expected and next step."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.data import load_dataset
from kfp_mindspore.data.report import render_report
from kfp_mindspore.errors import UserError
from kfp_mindspore.transform import DecodeImage, Pad, Resize, Tokenize

ROWS = [{"text": f"{'good' if index % 2 else 'bad'} film {index}", "label": str(index % 2)} for index in range(60)]
LISTS = [{"values": [1.0] * (1 + index % 4), "label": str(index % 2)} for index in range(60)]
TEXT_OPTIONS: dict[str, Any] = {
    "inputs": {"text": "text"},
    "target": "label",
    "preprocessing": [Tokenize(8, "words", lowercase=True, column="text")],
}
LIST_OPTIONS: dict[str, Any] = {
    "inputs": {"values": "values"},
    "target": "label",
    "preprocessing": [Pad(5, column="values")],
}


def change(index: int | None = None, rows: list[dict[str, Any]] = ROWS, **values: Any) -> list[dict[str, Any]]:
    """Return rows with other values in one row, from 0, or in all."""
    return [{**row, **values} if index in (None, place) else row for place, row in enumerate(rows)]


def to_lines(rows: list[dict[str, Any]], encoding: str = "utf-8") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def to_csv(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{','.join(map(str, row))}\n" for row in [list(rows[0]), *(row.values() for row in rows)]).encode()


TEXTS = {
    "latin.jsonl": (
        to_lines(change(5, text="sch\xf6n"), "latin-1"),
        "latin.jsonl (JSON lines): line 6: must be UTF-8, got",
        "iconv -f LATIN1",
    ),
    "numbers.jsonl": (
        to_lines(change(text=7)),
        "numbers.jsonl (JSON lines): text: Tokenize needs texts, the field holds numbers (int32, such as 7)",
        "Name the field with the texts",
    ),
    "numbers.csv": (to_csv(change(text=7)), "text: Tokenize needs texts, the field holds numbers", "Name the field"),
    "number.jsonl": (
        to_lines(change(5, text=7)),
        "number.jsonl (JSON lines): line 6: column 'text': must hold texts, as line 1, got 7",
        "Write one type in all rows",
    ),
    "object.jsonl": (to_lines(change(5, text={"a": 1})), "line 6: column 'text': must hold texts", "Write one type"),
    "list.jsonl": (to_lines(change(text=["a", "b"])), "text: lists must hold numbers, got string", "Write one text"),
    "blank.jsonl": (to_lines(change(text=" ")), "text: Tokenize needs texts, the field holds empty texts", "Name the"),
    "null.jsonl": (to_lines(change(5, text=None)), "missing values in text (1, first in row 6)", "--missing drop"),
    "class.jsonl": (
        to_lines(change(label="yes")),
        "class.jsonl (JSON lines): target label: a classification needs at least 2 classes, each of the 60 samples has "
        "'yes'",
        "Name another target",
    ),
    "class.csv": (
        to_csv(change(label=1)),
        "needs at least 2 classes, each of the 60 samples has '1'",
        "Name another target",
    ),
    "empty.jsonl": (
        to_lines(change(5, label="")),
        "empty.jsonl (JSON lines): missing values in label (1, first in row 6), in 60 samples",
        "Fill them in, or drop the samples: --missing drop",
    ),
    "spaces.csv": (to_csv(change(5, label="  ")), "missing values in label (1, first in row 6)", "--missing drop"),
    "alone.csv": (
        to_csv(change(5, label="x")),
        "several samples of each class, 'x' has one, row 6",
        "Remove the sample",
    ),
    "id.jsonl": (
        to_lines([{**row, "label": row["text"]} for row in ROWS]),
        "needs several samples of each class, got 60 classes in 60 samples",
        "Name another target",
    ),
    "cut.jsonl": (
        to_lines(ROWS) + b'{"text": "a go',
        'cut.jsonl (JSON lines): line 61: must be a JSON object, got \'{"text": "a go\'',
        "the file was cut: copy it again",
    ),
    "array.jsonl": (to_lines(ROWS) + b'["a", "b"]\n', "line 61: must be a JSON object such as", "Write each row as"),
    "column.jsonl": (
        to_lines([{"message": row["text"], "label": row["label"]} for row in ROWS]),
        "column.jsonl (JSON lines): no field 'text', found message, label",
        "Name one of its fields",
    ),
    "csv.jsonl": (to_csv(ROWS), "read as JSON lines, but its content is text, such as CSV", "--format csv"),
    "jsonl.csv": (to_lines(ROWS), "read as CSV, but its content is JSON", "--format jsonl"),
    "rows.json": (json.dumps(ROWS).encode(), "rows.json: unknown format", "jq -c '.[]' FILE > NEW.jsonl"),
    "nothing.jsonl": (b"", "nothing.jsonl: is empty, expected JSON lines", "copy the file again"),
    "header.csv": (b"text,label\n", "header.csv (CSV): has no rows", "with a row for each sample"),
    "comma.csv": (
        to_csv(ROWS) + b"bad, very bad,0\n",
        "comma.csv (CSV): line 62: must have 2 cells as the header has, got 3: 'bad, very bad,0'",
        "in double quotes",
    ),
    "quote.csv": (to_csv(ROWS) + b'"bad film,0\n' + to_csv(ROWS), "quote.csv (CSV): line 62: must have 2", "quotes"),
}


def refuse(source: Path, target: Path, options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_dataset(str(source), target, **options)
    assert hint in caught.value.hint
    assert not target.exists()


@pytest.mark.parametrize("name", TEXTS)
def test_wrong_texts_are_refused(name: str, tmp_path: Path) -> None:
    content, message, hint = TEXTS[name]
    (tmp_path / name).write_bytes(content)
    refuse(tmp_path / name, tmp_path / "data", TEXT_OPTIONS, message, hint)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            change(5, LISTS, values=[1, "x"]),
            """line 6: column 'values': must hold lists of numbers, as line 1, got [1""",
        ),
        (change(5, LISTS, values="[1]"), "line 6: column 'values': must hold lists of numbers, as line 1, got \"[1]\""),
        (change(5, LISTS, values=3), "line 6: column 'values': must hold lists of numbers, as line 1, got 3"),
        (change(5, LISTS, values=[[1]]), "line 6: column 'values': must hold lists of numbers, as line 1, got [[1]]"),
        (change(5, LISTS, values=[None]), "values: row 6: the list has a missing value"),
        (change(5, LISTS, values=None), "missing values in values (1, first in row 6)"),
        (change(5, LISTS, values=[1] * 9), "values: row 6: the list has 9 values, more than Pad's length 5"),
        (change(None, LISTS, label="a"), "target label: a classification needs at least 2 classes"),
        (change(5, LISTS, label=""), "missing values in label (1, first in row 6)"),
    ],
)
def test_wrong_lists_are_refused(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    (tmp_path / "lists.jsonl").write_bytes(to_lines(rows))
    refuse(tmp_path / "lists.jsonl", tmp_path / "data", LIST_OPTIONS, f"lists.jsonl (JSON lines): {message}", "")


def test_samples_without_class_are_dropped_by_rule(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_bytes(to_lines(change(5, label=" ")))
    dataset = load_dataset(str(tmp_path / "texts.jsonl"), tmp_path / "data", **TEXT_OPTIONS, missing="drop")
    assert dataset.labels == ("0", "1")
    assert sum(dataset.splits.values()) == 59


@pytest.mark.parametrize("unit", ["words", "subwords"])
def test_report_has_share_of_longer_texts(unit: str, tmp_path: Path) -> None:
    if unit == "subwords":
        pytest.importorskip("tokenizers")
    rows = [{"text": " ".join(["film"] * (index + 1)), "label": str(index % 2)} for index in range(100)]
    (tmp_path / "texts.jsonl").write_bytes(to_lines(rows))
    options = {**TEXT_OPTIONS, "preprocessing": [Tokenize(50, unit, column="text")]}
    dataset = load_dataset(str(tmp_path / "texts.jsonl"), tmp_path / "data", **options)
    counts = np.array([text.count(b" ") + 1 for text in dataset.read_columns("train")["text"]])
    found = dataset.report["texts"]["text"]
    assert found["cut"] == pytest.approx((counts > 50).mean(), abs=1e-4)
    assert (counts <= found["length_95"]).mean() >= 0.95 > (counts < found["length_95"]).mean()
    assert (
        f"warning: texts in text: {found['cut']:.1%} have more than 50 tokens and are cut; Tokenize's length "
        f"{found['length_95']} would keep 95% whole" in render_report(dataset)
    )
    longer = load_dataset(
        str(tmp_path / "texts.jsonl"),
        tmp_path / "data",
        **{**options, "preprocessing": [Tokenize(100, unit, column="text")]},
    )
    assert "texts" not in longer.report


def draw(kind: str, size: tuple[int, int] = (16, 16)) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for index in range(15):
            kind = ("png", "jpeg")[index % 2]
            (folder / name / f"{index}.{kind}").write_bytes(draw(kind))
    return folder


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def rename(folder: Path, suffix: str) -> None:
    for file in (folder / "cat").iterdir():
        file.rename(file.with_suffix(suffix))


IMAGES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "truncated JPEG": (
        lambda folder: write(folder / "cat/1.jpeg", draw("jpeg", (64, 64))[:-900]),
        "pets/cat/1.jpeg: must be a whole PNG or JPEG image, got",
        "Copy it again",
    ),
    "truncated PNG": (
        lambda folder: write(folder / "cat/2.png", draw("png")[:200]),
        "pets/cat/2.png: must be a whole PNG or JPEG image, got 200 bytes",
        "Copy it again",
    ),
    "text": (
        lambda folder: write(folder / "cat/2.png", b"<html>"),
        "pets/cat/2.png: must be a PNG or JPEG image, got 6 bytes in another format",
        "Convert it",
    ),
    "GIF": (lambda folder: write(folder / "cat/2.png", draw("gif")), "cat/2.png: must be a PNG or JPEG", "Convert it"),
    "empty file": (
        lambda folder: write(folder / "cat/2.png", b""),
        "cat/2.png: must be a PNG or JPEG image, got 0",
        "",
    ),
    "large": (
        lambda folder: write(folder / "cat/2.png", draw("png", (3000, 1500))),
        "pets/cat/2.png: must have at most 4194304 pixels, has 1500 x 3000",
        "DecodeImage(max_pixels=…)",
    ),
    "empty class": (
        lambda folder: (folder / "bird").mkdir(),
        "pets (images): the class folder bird must have .jpeg, .jpg, .png files, found nothing",
        "remove the folder",
    ),
    "other suffix": (
        lambda folder: rename(folder, ".webp"),
        "pets (images): the class folder cat must have .jpeg, .jpg, .png files, found 0.webp",
        "convert them",
    ),
    "one class": (
        lambda folder: (folder / "dog").rename(folder.parent / "dog"),
        "pets (images): must have images in at least two class folders, found them in cat",
        "a folder of images for each class",
    ),
    "no folders": (
        lambda folder: [
            (folder / "cat").rename(folder.parent / "cat"),
            (folder / "dog").rename(folder.parent / "dog"),
            write(folder / "a.jpg", draw("jpeg")),
        ],
        "unknown format",
        "a folder of images for each class",
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_wrong_images_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    spoil, message, hint = IMAGES[name]
    spoil(folder)
    refuse(folder, tmp_path / "data", {}, message, hint)


def test_image_in_place_of_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    refuse(folder / "cat/1.jpeg", tmp_path / "data", {}, "1.jpeg: unknown format", "a folder of images for each class")


def test_steps_may_allow_larger_images(folder: Path, tmp_path: Path) -> None:
    write(folder / "cat/2.png", draw("png", (3000, 1500)))
    steps = [DecodeImage(max_pixels=1 << 23, column="image"), Resize((16, 16), column="image")]
    dataset = load_dataset(str(folder), tmp_path / "data", preprocessing=steps)
    assert sum(dataset.splits.values()) == 30


def test_left_out_files_are_named(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder / "cat/x.webp", b"")
    load_dataset(str(folder), tmp_path / "data")
    assert "pets (images): left out in cat, neither PNG nor JPEG: x.webp" in caplog.messages


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("table.csv", {"texts": ["labl"]}, "no field 'labl', found text, label; did you mean 'label'?"),
        ("folder", {"format": "csv"}, "folder: is a directory, format csv needs a file"),
        ("table.csv", {"format": "images"}, "table.csv: is a file, format images needs a folder"),
        ("bundle", {}, "is a model bundle (signature.json), expected data"),
        ("table.csv", {"seed": -1}, "seed: must be an integer ≥ 0 and ≤ 4294967295, got -1"),
        ("table.csv", {"seed": 2**32}, "must be an integer ≥ 0 and ≤ 4294967295, got 4294967296"),
        ("table.csv", {"format": "csv", "image_size": [3, 3]}, "image_size: is for images, the format is csv"),
    ],
)
def test_options_that_do_not_fit_source_are_refused(
    tmp_path: Path, source: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "table.csv").write_bytes(to_csv(ROWS))
    (tmp_path / "folder").mkdir()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "signature.json").write_text("{}")
    np.savez(tmp_path / "bundle" / "verified.npz", values=np.zeros((9, 3), np.float32))
    with pytest.raises(UserError) as caught:
        load_dataset(str(tmp_path / source), tmp_path / "dataset", **{"target": "label", **options})
    assert message in str(caught.value)
