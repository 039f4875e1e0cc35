import pytest
from kfp import dsl

from ..component import select_samples

pytest_plugins = ["kfp_mindspore.testing"]


def test_smallest_margins_of_bundle_are_selected(run_component, lifecycle, tmp_path) -> None:
    """Smallest margins of the bundle are selected."""
    import numpy as np
    from kfp_mindspore.formats.dataset import Dataset, write_dataset
    from kfp_mindspore.mindir import ModelRunner

    source = Dataset.open(lifecycle.dataset)
    columns = source.read_columns("train")
    splits = {
        "train": {name: array[:50] for name, array in columns.items()},
        "pool": {name: array[50:] for name, array in columns.items()},
        "test": source.read_columns("test"),
    }
    write_dataset(
        tmp_path / "digits",
        name=source.name,
        task=source.task,
        columns=source.columns,
        splits=splits,
        labels=source.labels,
        preprocessing=source.preprocessing,
    )
    artifacts = {"dataset": (dsl.Dataset, tmp_path / "digits"), "bundle": (dsl.Model, lifecycle.bundle)}
    outputs = run_component(select_samples, artifacts, count=30)
    with ModelRunner(lifecycle.bundle) as runner:
        scores = runner.predict({"image": splits["pool"]["image"]})["output"].astype(np.float64)
    probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
    ordered = np.sort(probabilities / probabilities.sum(axis=1, keepdims=True), axis=1)
    expected = np.argsort(ordered[:, -1] - ordered[:, -2])[:30]
    assert [int(index) for index in outputs.parameters["indexes"]] == expected.tolist()
    assert outputs.parameters["labelled"] == 80
    chosen = Dataset.open(outputs.artifacts["selected"]["uri"]).read_columns("train")
    assert np.array_equal(chosen["image"][50:], splits["pool"]["image"][expected])


def test_unknown_strategy_fails_step(run_component, lifecycle) -> None:
    """Unknown strategy fails the step."""
    with pytest.raises(RuntimeError, match="strategy: must be one of entropy, margin, k_centre, random"):
        run_component(select_samples, {"dataset": (dsl.Dataset, lifecycle.dataset)}, strategy="best")
