"""The step that loads and splits a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.steps.arguments import to_metadata

if TYPE_CHECKING:
    from kfp import dsl


def prepare_dataset(
    artifact: dsl.Dataset, name: str, *, seed: int, validation_fraction: float, test_fraction: float
) -> tuple[int, int, int]:
    """Load a dataset into an artifact, split it and describe it in the artifact's metadata.

    Args:
        artifact: Output artifact; the dataset directory is written to its path.
        name: Name, path or URI, see `kfp_mindspore.data.load_dataset`.
        seed: Seed of the split.
        validation_fraction: Fraction of all samples in the validation split, between 0 and 1.
        test_fraction: Fraction of all samples in the test split, between 0 and 1.

    Returns:
        Number of samples in the train, validation and test splits.
    """
    from kfp_mindspore.data import load_dataset

    dataset = load_dataset(
        name, artifact.path, seed=seed, validation_fraction=validation_fraction, test_fraction=test_fraction
    )
    artifact.metadata.update(
        name=dataset.name,
        seed=dataset.seed,
        labels=to_metadata(dataset.labels),
        task=dataset.task,
        columns=to_metadata([vars(column) for column in dataset.columns]),
        splits=to_metadata(dataset.splits),
        digest=dataset.digest,
    )
    return dataset.splits["train"], dataset.splits["validation"], dataset.splits["test"]
