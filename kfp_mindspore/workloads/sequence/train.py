"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os
from collections.abc import Sequence

from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.workloads.sequence.network import Network
from mindspore import nn


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    values = read_samples(dataset, "train", count=1).inputs["values"]
    # The export step builds the network with the same arguments: JSON types only.
    arguments = {"features": values.shape[2] if values.ndim == 3 else 1, "classes": len(dataset.labels)}

    set_seed(options.seed)
    network = Network(**arguments)
    fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), options.learning_rate, weight_decay=1e-2),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            metrics=("accuracy",),
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
