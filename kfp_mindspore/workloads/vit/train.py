"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os

import numpy as np
import numpy.typing as npt
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.workloads.vit.network import Network
from mindspore import nn


def augment(images: npt.NDArray[np.float32], generator: np.random.Generator) -> npt.NDArray[np.float32]:
    """Mirror half the images in a batch with shape (N, C, H, W)."""
    mirrored = generator.random(len(images)) < 0.5
    images[mirrored] = images[mirrored, :, :, ::-1]
    return images


def main() -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    (images,) = read_samples(dataset, "train", count=1).inputs.values()
    _, channels, size, _ = images.shape
    # The export step builds the network with the same arguments: JSON types only.
    arguments = {"size": size, "classes": len(dataset.labels), "channels": channels}

    set_seed(options.seed)
    network = Network(**arguments)
    fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), options.learning_rate, weight_decay=0.05),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule={"name": "cosine", "warmup_epochs": 1},
            augment=augment,
            ema=0.99,
            metrics=("accuracy",),
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
