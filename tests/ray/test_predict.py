"""predict_rows: the lines of one process, from arrays and from shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.formats.dataset import Dataset, write_dataset
from kfp_mindspore.ray import predict_rows
from kfp_mindspore.steps.deployment.predict import predict_batch

pytestmark = pytest.mark.mindspore


class Artifact:
    """A KFP artifact's path and metadata."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.metadata: dict[str, Any] = {}


@pytest.mark.parametrize("storage", ["npz", "parquet"])
def test_lines_equal_those_of_one_process(ray_session: Any, models: Path, tmp_path: Path, storage: str) -> None:
    dataset = Dataset.open(models / "dataset")
    described = {name: getattr(dataset, name) for name in ("name", "task", "columns", "labels", "preprocessing")}
    splits = {split: dataset.read_columns(split, 90) for split in dataset.splits}
    path = write_dataset(tmp_path / "data", splits=splits, storage=storage, **described).path
    file = tmp_path / "one.jsonl"
    predict_batch(Artifact(models / "raw"), Artifact(path), Artifact(file), shard="2/2")
    expected = [json.loads(line) for line in file.read_text().splitlines()]
    found = [
        json.loads(line) for line in predict_rows(models / "raw", path, "test", np.arange(1, 90, 2), batch_size=16)
    ]
    assert [line["index"] for line in found] == [line["index"] for line in expected] == list(range(1, 90, 2))
    assert [line["prediction"] for line in found] == [line["prediction"] for line in expected]
    for one, other in zip(found, expected, strict=True):
        for name, values in one["outputs"].items():
            assert values == pytest.approx(other["outputs"][name], abs=1e-6)
