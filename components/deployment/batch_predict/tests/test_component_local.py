import json
from pathlib import Path

import pytest
from kfp import dsl

from ..component import batch_predict

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.mindspore
def test_shard_has_its_part_of_samples(run_component, lifecycle) -> None:
    """Shard has its part of the samples."""
    from kfp_mindspore.data import read_samples

    given = {"bundle": (dsl.Model, lifecycle.bundle), "dataset": (dsl.Dataset, lifecycle.dataset)}
    outputs = run_component(batch_predict, given, shard="2/2")
    rows = [json.loads(line) for line in Path(outputs.artifacts["predictions"]["uri"]).read_text().splitlines()]
    assert outputs.parameters["samples"] == len(rows) == 180
    assert outputs.artifacts["predictions"]["metadata"]["shard"] == 2
    assert {row["index"] for row in rows} <= set(range(360))
    labels = read_samples(lifecycle.dataset, "test").target
    hits = sum(row["prediction"] == str(labels[row["index"]]) for row in rows)
    assert hits > 90
    assert all(len(scores) == 10 for row in rows for scores in row["outputs"].values())


def test_unknown_split_fails_step(run_component, lifecycle) -> None:
    """Unknown split fails the step."""
    given = {"bundle": (dsl.Model, lifecycle.bundle), "dataset": (dsl.Dataset, lifecycle.dataset)}
    with pytest.raises(RuntimeError, match="no split 'new', found"):
        run_component(batch_predict, given, split="new")
