"""Component that loads and splits a dataset."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def load_dataset(
    dataset: Output[Dataset],
    name: str = "digits",
    seed: int = 42,
    validation_fraction: float = 0.15,
    test_fraction: float = 0.2,
) -> NamedTuple("Outputs", [("train_samples", int), ("validation_samples", int), ("test_samples", int)]):
    """Load a dataset and split it into train, validation and test, stratified by label.

    The dataset directory contains dataset.json, and train.npz, validation.npz and test.npz with `features` (float32)
    and `labels` (int32). `digits`, `breast_cancer` and `wine` are bundled with scikit-learn and need no network
    access; an .npz file has the same two arrays.

    Args:
        dataset: The dataset directory, with name, labels, features, splits, seed and digests in its metadata.
        name: `digits`, `breast_cancer` or `wine`, or a path or URI of a dataset directory or an .npz file.
        seed: Seed of the split.
        validation_fraction: Fraction of all samples in the validation split, between 0 and 1.
        test_fraction: Fraction of all samples in the test split, between 0 and 1.

    Returns:
        train_samples: Number of samples in the train split.
        validation_samples: Number of samples in the validation split.
        test_samples: Number of samples in the test split.
    """
    from kfp_mindspore.steps.data import prepare_dataset

    return prepare_dataset(
        dataset, name, seed=seed, validation_fraction=validation_fraction, test_fraction=test_fraction
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(load_dataset, package_path=__file__.replace(".py", ".yaml"))
