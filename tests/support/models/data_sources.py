"""Small sources of every format, written to a directory by name."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COUNT = 60
RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(size=(COUNT, 2)).astype(np.float32)
CITIES = np.array(["Bonn", "Oslo", "Rome"])[np.arange(COUNT) % 3]
DAYS = np.datetime64("2024-01-01") + RANDOM.permutation(COUNT)
PIXELS = RANDOM.integers(0, 256, (COUNT, 6, 5), np.uint8)


def make_table() -> dict[str, Any]:
    return {
        "width": VALUES[:, 0],
        "height": VALUES[:, 1],
        "city": CITIES,
        "user": np.arange(COUNT) % 12,
        "day": DAYS,
        "label": np.arange(COUNT) % 2,
    }


def write_csv(path: Path, separator: str = ",") -> Path:
    table = make_table()
    rows = zip(*(map(str, column.tolist()) for column in table.values()), strict=True)
    path.write_text("\n".join(separator.join(row) for row in [tuple(table), *rows]) + "\n")
    return path


def write_tsv(path: Path) -> Path:
    return write_csv(path, "\t")


def write_parquet(path: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(make_table()), path)
    return path


def write_json_lines(path: Path) -> Path:
    table = {name: map(str, column) if name == "day" else column.tolist() for name, column in make_table().items()}
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join(json.dumps({**row, "pair": [1, row["user"]]}) for row in rows))
    return path


def write_npz(path: Path) -> Path:
    np.savez(path, features=VALUES.astype(np.float64), labels=np.arange(COUNT) % 2)
    return path


def write_npy(path: Path) -> Path:
    rows = np.zeros(COUNT, [("width", "f4"), ("label", "i8")])
    rows["width"], rows["label"] = VALUES[:, 0], np.arange(COUNT) % 2
    np.save(path, rows)
    return path


def write_idx(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    labels = (np.arange(COUNT) % 2).astype(np.uint8)
    for name, rows in (("train", slice(0, 40)), ("t10k", slice(40, COUNT))):
        for kind, array in (("images-idx3", PIXELS[rows]), ("labels-idx1", labels[rows])):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (path / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return path


def write_images(path: Path) -> Path:
    from PIL import Image

    for index, pixels in enumerate(PIXELS):
        folder = path / ("even" if index % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return path


def write_text(path: Path) -> Path:
    path.write_text("".join(f"Line {number} is here.\n" for number in range(200)), "utf-8")
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "table.csv": write_csv,
    "table.tsv": write_tsv,
    "table.parquet": write_parquet,
    "table.jsonl": write_json_lines,
    "arrays.npz": write_npz,
    "rows.npy": write_npy,
    "fashion": write_idx,
    "images": write_images,
    "story.txt": write_text,
}


def write_source(name: str, directory: Path) -> str:
    return str(WRITERS[name](directory / name))
