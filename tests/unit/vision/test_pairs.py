"""Pictures with captions: accepted forms, and bad ones by row."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.vision.pairs import Pair, decode_pictures, hold_out, read_pairs


def draw(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 5, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, table: str = "pairs.jsonl", **changes: Any) -> Path:
    """Write two pictures and a table; `changes` replace the second row's fields."""
    (folder / "pictures").mkdir(parents=True)
    rows = []
    for number in range(2):
        (folder / f"pictures/{number}.png").write_bytes(draw(number))
        rows.append({"image": f"pictures/{number}.png", "caption": f" number {number} ", "other": [1] * number})
    rows[1] |= changes
    (folder / table).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / table


def test_tables_and_folders_have_equal_pairs(tmp_path: Path) -> None:
    expected = [(draw(number), f"number {number}") for number in range(2)]
    table = write(tmp_path / "a", "metadata.jsonl")
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    (tmp_path / "a/rows.csv").write_text(
        "file_name,text\n" + "".join(f"{row['image']},{row['caption']}\n" for row in rows)
    )
    parquet.write_table(
        pyarrow.table({"path": [row["image"] for row in rows], "text": [row["caption"] for row in rows]}),
        tmp_path / "a/rows.parquet",
    )
    for name in ("metadata.jsonl", "rows.csv", "rows.parquet", ""):
        found = read_pairs(str(tmp_path / "a" / name))
        assert [(pair.image, pair.caption) for pair in found] == expected, name
    for number in range(2):
        (tmp_path / f"classes/number {number}").mkdir(parents=True)
        (tmp_path / f"classes/number {number}/file.png").write_bytes(draw(number))
    found = read_pairs(str(tmp_path / "classes"))
    assert [(pair.image, pair.caption) for pair in found] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"caption": " "}, "pairs.jsonl: row 2: caption: is empty"),
        ({"caption": None}, "pairs.jsonl: row 2: caption: is empty"),
        ({"image": "none.png"}, "pairs.jsonl: row 2: image: no such file 'none.png' beside pairs.jsonl"),
        ({"image": None}, "pairs.jsonl: row 2: image: no such file '' beside pairs.jsonl"),
        ({"image": ""}, "pairs.jsonl: row 2: image: no such file '' beside pairs.jsonl"),
    ],
)
def test_bad_row_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        read_pairs(str(write(tmp_path / "a", **changes)))
    assert message in str(refused.value)


def test_missing_field_or_source_is_named(tmp_path: Path) -> None:
    table = write(tmp_path / "a")
    table.write_text(table.read_text().replace("caption", "words"))
    with pytest.raises(UserError, match=r"pairs\.jsonl \(JSON lines\): no field caption or text, found image"):
        read_pairs(str(table))
    with pytest.raises(NotFoundError, match="none: neither"):
        read_pairs(str(tmp_path / "none"))


def test_damaged_picture_is_named(tmp_path: Path) -> None:
    table = write(tmp_path / "a")
    (tmp_path / "a/pictures/1.png").write_bytes(draw(1)[:50])
    with pytest.raises(UserError, match=r"pairs\.jsonl: row 2: image: must be a whole PNG or JPEG file"):
        decode_pictures(read_pairs(str(table)), DecodeImage(resize=(8, 8)))


def test_pictures_keep_their_bits() -> None:
    (found,) = decode_pictures([Pair(draw(3), "a", "a")], DecodeImage(resize=(6, 5)))
    assert np.array_equal(found.transpose(1, 2, 0), np.asarray(Image.open(io.BytesIO(draw(3)))))


@pytest.mark.parametrize(
    ("pictures", "captions", "message"),
    [
        (1, 40, "all pairs: must have at least two different pictures to compare, got 1 in "),
        (40, 1, "all pairs: must have at least two different captions to compare, got 1 in "),
        (2, 2, " pairs: must have at least two different pictures to compare, got 1 in "),
    ],
    ids=["equal-pictures", "equal-captions", "too-few"],
)
def test_pairs_without_contrast_are_refused(pictures: int, captions: int, message: str) -> None:
    pairs = [Pair(draw(number % pictures), f"caption {number % captions}", "row") for number in range(40)]
    with pytest.raises(UserError) as refused:
        hold_out(pairs, 0.2)
    assert message in str(refused.value)


def test_equal_pictures_are_held_out_together() -> None:
    pairs = [Pair(draw(number % 20), f"caption {number}", "row") for number in range(60)]
    training, held = hold_out(pairs, 0.3)
    assert len(training) + len(held) == 60
    assert not {pair.image for pair in training} & {pair.image for pair in held}
