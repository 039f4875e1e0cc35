"""A network's metric over batches of rows, and the latency of its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mindspore import nn

from kfp_mindspore.compression.measure import BATCHES, evaluate_network, measure_latency
from kfp_mindspore.compression.result import BLOCKS
from kfp_mindspore.data.samples import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Column, Dataset, write_dataset

pytestmark = pytest.mark.mindspore


class Scores(nn.Cell):  # type: ignore[misc]
    """The rows themselves as scores, in a form that networks return."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def construct(self, rows: Any) -> Any:
        return (rows, rows.sum()) if self.form == "tuple" else rows


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    generator = np.random.default_rng(0)
    # More rows than one batch has: the last one is filled up.
    splits = {}
    for name, count in (("train", 3), ("validation", 300)):
        rows = generator.normal(size=(count, 3)).astype(np.float32)
        splits[name] = {"rows": rows, "label": generator.integers(0, 3, count).astype(np.int32)}
    path = tmp_path_factory.mktemp("data") / "rows"
    columns = [Column("rows", "float32", (3,), "feature"), Column("label", "int32", (), "target")]
    write_dataset(path, name="rows", task="classification", columns=columns, labels=("a", "b", "c"), splits=splits)
    return Dataset.open(path)


@pytest.mark.parametrize("form", ["tensor", "tuple"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_metric_counts_each_row_once(form: str, split: str, dataset: Dataset) -> None:
    samples = read_samples(dataset, split)
    expected = (samples.inputs["rows"].argmax(1) == samples.target).mean()

    assert evaluate_network(Scores(form), samples.inputs, samples, dataset, "") == pytest.approx(float(expected))


def test_metric_of_another_task_is_refused(dataset: Dataset) -> None:
    samples = read_samples(dataset, "train")

    with pytest.raises(UserError, match="rmse"):
        evaluate_network(Scores("tensor"), samples.inputs, samples, dataset, "rmse")


def test_latencies_are_measured_in_turns_by_batch() -> None:
    rows = {"rows": np.ones((3, 4), np.float32)}

    found = measure_latency([nn.Dense(4, 2), nn.Dense(4, 200)], rows)

    assert [set(latency) for latency in found] == [set(BATCHES)] * 2
    for batch in BATCHES:
        counts = {len(latency[batch]) for latency in found}
        assert len(counts) == 1
        assert min(counts) >= BLOCKS
        assert all(seconds > 0 for latency in found for seconds in latency[batch])
