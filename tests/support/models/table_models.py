"""A table as CSV, and bundles that return the features that its rows become."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

CITIES = ("Oslo", "Bergen", "Tromsø")


def make_rows(count: int = 80) -> list[dict[str, Any]]:
    """Return rows with whole numbers, texts, floats, booleans, an id and different targets; one cell is empty."""
    generator = random.Random(0)
    rows: list[dict[str, Any]] = [
        {
            "id": index,
            "age": generator.randint(18, 80),
            "city": generator.choice(CITIES),
            "income": round(generator.gauss(3, 1), 3),
            "garden": generator.random() < 0.5,
            "price": 40.5 + index,
        }
        for index in range(count)
    ]
    rows[0]["income"] = None
    return rows


def write_csv(file: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows with a header; None is an empty cell."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def export_table(root: Path, name: str, options: dict[str, Any], **changes: Any) -> Path:
    """Load `table.csv` in `root`, and export a network that returns its features to `root / name`."""
    import mindspore
    import small_networks

    from kfp_mindspore.data import load_dataset
    from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
    from kfp_mindspore.mindir import export_mindir

    dataset = load_dataset(str(root / "table.csv"), root / f"{name}-data", target=["price"], **options)
    spec = NetworkSpec("small_networks:Echo")
    checkpoint = root / f"{name}-checkpoint"
    with write_checkpoint(
        checkpoint, epoch=1, step=1, seed=1, network=spec, preprocessing=dataset.preprocessing
    ) as directory:
        mindspore.save_checkpoint(small_networks.Echo(), str(directory / "network.ckpt"))
    export_mindir(checkpoint, root / name, dataset_dir=dataset.path, **changes)
    return root / name
