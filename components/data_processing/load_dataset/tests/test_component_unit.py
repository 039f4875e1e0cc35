import json
from pathlib import Path

import pytest
from kfp import dsl

from ..component import load_dataset


def test_splits_are_counted_and_metadata_is_set(tmp_path: Path) -> None:
    """Splits are counted and metadata is set."""
    from kfp_mindspore.formats.dataset import Dataset

    artifact = dsl.Dataset(uri=str(tmp_path / "dataset"), metadata={})
    counts = load_dataset.python_func(dataset=artifact, name="wine", seed=7, test_fraction=0.25)
    dataset = Dataset.open(artifact.path)
    assert dict(zip(("train", "validation", "test"), counts, strict=True)) == dict(dataset.splits)
    assert sum(counts) == 178
    assert counts[2] == 45
    assert artifact.metadata["name"] == "wine"
    assert artifact.metadata["seed"] == 7
    assert json.loads(artifact.metadata["splits"]) == dict(dataset.splits)
    assert json.loads(artifact.metadata["labels"]) == list(dataset.labels)
    assert json.loads(artifact.metadata["columns"])[0]["shape"] == [13]
    assert all(isinstance(value, (str, int, float)) for value in artifact.metadata.values())


def test_options_of_table(tmp_path: Path) -> None:
    """Options of a table."""
    from kfp_mindspore.data import read_samples

    rows = [f"{row},{'ab'[row % 2]},{row / 7}" for row in range(60)]
    (tmp_path / "data.csv").write_text("\n".join(["size,kind,price", *rows]))
    artifact = dsl.Dataset(uri=str(tmp_path / "dataset"), metadata={})
    counts = load_dataset.python_func(
        dataset=artifact,
        name=str(tmp_path / "data.csv"),
        test=str(tmp_path / "data.csv"),
        target=["price"],
        inputs={"size": ["size"], "kind": "kind"},
        missing="0",
        preprocessing='[{"type": "MinMax", "column": "size"}, {"type": "Vocabulary", "column": "kind"}]',
    )
    assert counts == (51, 9, 60)
    assert artifact.metadata["task"] == "regression"
    assert json.loads(artifact.metadata["report"])["duplicates"] == {"validation": 0, "test": 51}
    samples = read_samples(artifact.path, "train")
    assert (samples.inputs["size"].min(), samples.inputs["size"].max()) == (0, 1)
    assert set(samples.inputs["kind"]) == {1, 2}


def test_artifact_of_another_component_is_loaded(tmp_path: Path) -> None:
    """Artifact of another component, a table without a suffix, is loaded in place of the name."""
    (tmp_path / "export").write_text("\n".join(["size;price", *(f"{row};{row / 7}" for row in range(60))]))
    artifact = dsl.Dataset(uri=str(tmp_path / "dataset"), metadata={})
    source = dsl.Dataset(uri=str(tmp_path / "export"), metadata={})
    counts = load_dataset.python_func(dataset=artifact, source=source, target=["price"], split="random")
    assert sum(counts) == 60
    assert artifact.metadata["name"] == "export"


def test_unknown_name_is_refused(tmp_path: Path) -> None:
    """Unknown name is refused."""
    from kfp_mindspore.errors import NotFoundError

    artifact = dsl.Dataset(uri=str(tmp_path / "dataset"), metadata={})
    with pytest.raises(NotFoundError, match="no_such_set"):
        load_dataset.python_func(dataset=artifact, name="no_such_set")
    assert not Path(artifact.path).exists()
