"""Training script for one round: the split `train` holds the labelled samples.

Example:
    python -m kfp_mindspore.workloads.active_learning.train --epochs 60
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from kfp_mindspore import training
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.settings import DATASET_VARIABLE

if TYPE_CHECKING:
    from mindspore import nn

EPOCHS = 60
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2


def train(data: Any, arguments: dict[str, int], *, epochs: int = EPOCHS, seed: int = 42) -> nn.Cell:
    """Train a new network on the labelled samples; checkpoints and output as `fit`.

    Args:
        data: Samples in a form that `fit` accepts.
        arguments: Network arguments.
        epochs: Passes over the labelled samples.
        seed: Seed for initial weights and shuffling.

    Returns:
        The network, set for inference.
    """
    from kfp_mindspore.workloads.active_learning.network import Classifier
    from mindspore import nn

    training.set_seed(seed)
    network = Classifier(**arguments)
    training.fit(
        network,
        data,
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        config=training.TrainingConfig(
            epochs=epochs,
            schedule="cosine",
            metrics=("accuracy",) if isinstance(data, Dataset) else (),
            seed=seed,
            network_arguments=arguments,
            verbose=isinstance(data, Dataset),
        ),
    )
    network.set_train(False)
    return network


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train a classifier on the labelled samples.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)
    dataset = Dataset.open(os.environ[DATASET_VARIABLE])
    (features,) = read_samples(dataset, "train", count=1).inputs.values()
    arguments = {"features": int(np.prod(features.shape[1:])), "classes": len(dataset.labels)}
    train(dataset, arguments, epochs=options.epochs, seed=options.seed)


if __name__ == "__main__":
    main()
