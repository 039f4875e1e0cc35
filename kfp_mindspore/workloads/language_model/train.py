"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os

from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.workloads.language_model.network import PADDING, Network
from mindspore import Tensor, nn, ops


def compute_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of scores (N, L, V) for the ids (N, L) that follow, without padding."""
    return ops.cross_entropy(scores.reshape(-1, scores.shape[-1]), target.reshape(-1), ignore_index=PADDING)


def main() -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    (target,) = dataset.list_columns("target")
    # The export step builds the network with the same arguments: JSON types only.
    arguments = {"size": len(dataset.labels), "length": target.shape[0]}

    set_seed(options.seed)
    network = Network(**arguments)
    fit(
        network,
        dataset,
        loss=compute_loss,
        optimizer=nn.AdamWeightDecay(network.trainable_params(), options.learning_rate, weight_decay=1e-2),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule={"name": "cosine", "warmup_epochs": 0.1 * options.epochs},
            clip_norm=1.0,
            metrics=("perplexity",),
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
