"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.workloads.tabular.network import Network
from mindspore import nn
from numpy.typing import NDArray


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--weight-decay", type=float, default=300.0, help="of the hidden layer, divided by the rows")
    parser.add_argument("--noise", type=float, default=0.4, help="deviation, on standardised features, for classes")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    (features,) = read_samples(dataset, "train", count=1).inputs.values()
    # The export step builds the network with the same arguments: JSON types only.
    if dataset.task == "regression":
        (target,) = dataset.list_columns("target")
        numbers = dataset.statistics[target.name]
        arguments = {
            "inputs": features.size,
            "outputs": int(np.prod(target.shape)),
            "mean": numbers["mean"],
            "std": numbers["std"],
        }
        loss, metric = nn.MSELoss(), "rmse"
    else:
        arguments = {"inputs": features.size, "outputs": len(dataset.labels)}
        loss, metric = nn.CrossEntropyLoss(), "log_loss"

    # Noise keeps the probabilities of few samples from 0 and 1. Predicted numbers it would shrink to their mean.
    def add_noise(batch: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        noisy: NDArray[np.float32] = batch + options.noise * random.standard_normal(batch.shape, np.float32)
        return noisy

    set_seed(options.seed)
    network = Network(**arguments)
    # Like ridge regression's penalty, the decay counts once for all rows: with many, the hidden layer may fit more. The
    # linear layer takes longer steps without decay: few rows have few steps, and its loss is convex.
    decay = min(options.weight_decay / dataset.splits["train"], 1 / options.learning_rate)
    linear = [item for item in network.trainable_params() if item.name.startswith("linear.")]
    others = [item for item in network.trainable_params() if not item.name.startswith("linear.")]
    groups = [{"params": others, "weight_decay": decay}]
    if linear:
        groups.append({"params": linear, "lr": 4 * options.learning_rate})
    fit(
        network,
        dataset,
        loss=loss,
        # A small target, which is not standardised, has small gradients.
        optimizer=nn.AdamWeightDecay(groups, options.learning_rate, eps=1e-12),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule="cosine",
            augment=None if dataset.task == "regression" else add_noise,
            metrics=(metric,),
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
