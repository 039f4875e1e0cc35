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
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.5)
    parser.add_argument("--noise", type=float, default=0.4, help="deviation of the noise on standardised features")
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

    # With few samples, noise keeps a network from fitting single ones.
    def add_noise(batch: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        noisy: NDArray[np.float32] = batch + options.noise * random.standard_normal(batch.shape, np.float32)
        return noisy

    set_seed(options.seed)
    network = Network(**arguments)
    fit(
        network,
        dataset,
        loss=loss,
        optimizer=nn.AdamWeightDecay(
            network.trainable_params(), options.learning_rate, weight_decay=options.weight_decay
        ),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule="cosine",
            augment=add_noise,
            metrics=(metric,),
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
