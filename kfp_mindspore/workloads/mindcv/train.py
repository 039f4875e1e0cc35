"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.workloads.mindcv.network import build_network, list_head
from mindspore import nn


def augment(images: npt.NDArray[np.float32], generator: np.random.Generator) -> npt.NDArray[np.float32]:
    """Mirror half the images in a batch with shape (N, C, H, W)."""
    mirrored = generator.random(len(images)) < 0.5
    images[mirrored] = images[mirrored, :, :, ::-1]
    return images


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18", help="a name in mindcv.list_models()")
    parser.add_argument("--initial", default="", help="checkpoint, bundle or file with the weights to start with")
    parser.add_argument("--freeze", default="", help="names of untrained parameters: conv1.*,layer1.*; or backbone")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    (images,) = read_samples(dataset, "train", count=1).inputs.values()
    if dataset.task != "classification" or images.ndim != 4:
        raise UserError(f"dataset: must be images with a class each, got {dataset.task} of shape {images.shape[1:]}")
    # The export step builds the network with the same arguments: JSON types only.
    arguments = {"name": options.network, "classes": len(dataset.labels), "channels": images.shape[1]}

    set_seed(options.seed)
    network = build_network(**arguments)
    head = list_head(network, **arguments)
    backbone = options.freeze == "backbone"
    fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), options.learning_rate, weight_decay=0.05),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule={"name": "cosine", "warmup_epochs": 1},
            augment=augment,
            metrics=("accuracy",),
            keep_best="accuracy",
            initial=options.initial or None,
            # Weights for other classes keep all but their head.
            initial_optional=head,
            freeze=["*"] if backbone else [name for name in options.freeze.split(",") if name],
            unfreeze={1: head} if backbone else {},
            seed=options.seed,
            network_factory=f"{build_network.__module__}:build_network",
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
