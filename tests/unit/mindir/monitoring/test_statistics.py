from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.cli.main import cli
from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.formats.bundle import STATISTICS_FILE, ModelBundle
from kfp_mindspore.formats.dataset import Column, Dataset, write_dataset
from kfp_mindspore.mindir.monitoring.reference import read_statistics
from kfp_mindspore.mindir.monitoring.statistics import read_spread

pytestmark = pytest.mark.mindspore


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("declared", {"age": "number", "income": "number", "garden": "category", "city": "category"}),
        ("coded", {"age": "number", "income": "number", "city": "category"}),
        ("plain", {"age": "number", "income": "number"}),
    ],
)
def test_statistics_are_those_of_training_columns(tables: Path, name: str, kinds: dict[str, str]) -> None:
    statistics = read_statistics(ModelBundle.open(tables / name))
    assert {column: entry["kind"] for column, entry in statistics["columns"].items()} == kinds
    dataset = Dataset.open(tables / f"{name}-data")
    (numbers, *_) = [column for column in dataset.list_columns("feature") if "income" in column.fields]
    values = dataset.read_columns("train")[numbers.name][:, numbers.fields.index("income")]
    income = statistics["columns"]["income"]["measures"]["value"]
    assert (income["minimum"], income["maximum"]) == (pytest.approx(values.min()), pytest.approx(values.max()))
    assert income["mean"] == pytest.approx(values.mean(), rel=1e-4)
    assert (income["missing"], income["rows"], income["values"]) == (1, 1500, len(values))
    assert statistics["rows"] == dataset.splits["train"]


def test_text_columns_have_their_categories(tables: Path) -> None:
    columns = read_statistics(ModelBundle.open(tables / "declared"))["columns"]
    assert set(columns["city"]["measures"]["value"]["counts"]) == {"Oslo", "Bergen", "Tromsø"}
    assert set(columns["garden"]["measures"]["value"]["counts"]) == {"0", "1"}


def test_classifier_has_predictions_brightness_and_metric(lifecycle: Any) -> None:
    statistics = read_statistics(ModelBundle.open(lifecycle.bundle))
    ((_, image),) = statistics["columns"].items()
    assert (image["kind"], set(image["measures"])) == ("image", {"brightness", "size"})
    predictions = statistics["predictions"]
    assert sum(predictions["prediction"]["counts"].values()) == predictions["confidence"]["values"] == 360
    assert predictions["confidence"]["maximum"] <= 1
    metric = statistics["metric"]
    assert metric["name"] == "accuracy"
    assert metric["low"] <= metric["value"] <= metric["high"]
    assert metric["value"] == pytest.approx(lifecycle_accuracy(lifecycle))


def lifecycle_accuracy(lifecycle: Any) -> float:
    from kfp_mindspore.mindir import evaluate_bundle

    return evaluate_bundle(lifecycle.bundle, lifecycle.dataset).value


def test_statistics_are_left_out_and_signed(tables: Path, tmp_path: Path) -> None:
    import shutil

    bare = ModelBundle.open(tables / "bare")
    assert STATISTICS_FILE not in bare.signature.files
    with pytest.raises(UserError, match=r"has no statistics of its training data to compare with\n.*--dataset"):
        read_statistics(bare)
    changed = tmp_path / "changed"
    shutil.copytree(tables / "plain", changed)
    file = changed / STATISTICS_FILE
    file.write_text(file.read_text().replace("1500", "1501"))
    with pytest.raises(CorruptBundleError, match=r"statistics.json: sha256 must be"):
        read_statistics(ModelBundle.open(changed, verify=False))


@pytest.mark.parametrize("storage", ["npz", "parquet"])
@pytest.mark.parametrize(("count", "expected"), [(5, [0, 24, 49, 74, 99]), (1000, list(range(100)))])
def test_rows_are_spread_over_split(tmp_path: Path, storage: str, count: int, expected: list[int]) -> None:
    columns = (Column("x", "float32", ()), Column("y", "float32", (), "target"))
    arrays = {name: np.arange(100, dtype=np.float32) for name in ("x", "y")}
    dataset = write_dataset(
        tmp_path / "data", name="sorted", task="regression", columns=columns, splits={"train": arrays}, storage=storage
    )
    assert read_spread(dataset, "train", count)["x"].tolist() == expected


def test_inspect_shows_statistics(tables: Path) -> None:
    from click.testing import CliRunner

    found = CliRunner().invoke(cli, ["model", "inspect", str(tables / "declared")]).output
    assert "statistics of 975 training rows:" in found
    (city,) = [line for line in found.splitlines() if line.startswith("city") and "%" in line]
    assert city.split()[1:4] == ["value", "975", "0.0%"]
    assert "statistics of" not in CliRunner().invoke(cli, ["model", "inspect", str(tables / "bare")]).output
