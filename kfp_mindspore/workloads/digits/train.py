"""Training script for LeNet-5 on digits, an example of a user script.

Dataset, checkpoints and output are in the directories KFP_MINDSPORE_DATASET_DIR, KFP_MINDSPORE_CHECKPOINT_DIR and
KFP_MINDSPORE_OUTPUT_DIR, which `fit` reads. Epochs, learning rate, weight decay, label smoothing and augmentation were
tuned on the validation split.

Example:
    python -m kfp_mindspore.workloads.digits.train --epochs 30
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from kfp_mindspore import training
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.settings import DATASET_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.training.loop import FitResult
    from numpy.typing import NDArray

EPOCHS = 30
BATCH_SIZE = 32
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
LABEL_SMOOTHING = 0.1


def distort(images: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Rotate, scale, shear and shift each image randomly, with bilinear interpolation.

    Args:
        images: Shape (N, 1, H, W).
        generator: Random generator; up to 0.15 rad, 8 %, 0.1 and half a pixel.

    Returns:
        Images with the same shape.
    """
    count, _, height, width = images.shape
    angle, shear = (generator.uniform(-limit, limit, count) for limit in (0.15, 0.1))
    scale_y, scale_x = 1 + generator.uniform(-0.08, 0.08, (2, count))
    shift = generator.uniform(-0.5, 0.5, (count, 1, 2))
    cosine, sine = np.cos(angle), np.sin(angle)
    matrix = np.stack([cosine * scale_y, shear - sine, sine, cosine * scale_x], axis=-1).reshape(count, 2, 2)
    centre = np.array([height - 1, width - 1]) / 2
    pixels = np.indices((height, width)).reshape(2, -1).T - centre
    positions = pixels @ matrix.transpose(0, 2, 1) + centre + shift

    padding = 3
    padded = np.pad(images[:, 0], ((0, 0), (padding, padding), (padding, padding)))
    corner = np.clip(np.floor(positions).astype(int), -padding, np.array([height, width]) + padding - 2)
    fy, fx = np.moveaxis(positions - corner, -1, 0)
    y, x = np.moveaxis(corner + padding, -1, 0)
    image = np.arange(count)[:, None]
    above = padded[image, y, x] * (1 - fx) + padded[image, y, x + 1] * fx
    below = padded[image, y + 1, x] * (1 - fx) + padded[image, y + 1, x + 1] * fx
    distorted: NDArray[np.float32] = (above * (1 - fy) + below * fy).reshape(images.shape).astype(np.float32)
    return distorted


def train(epochs: int, batch_size: int, learning_rate: float, seed: int) -> FitResult:
    """Train with checkpoints and save the final network.

    Args:
        epochs: Passes over the training split.
        batch_size: Images per step.
        learning_rate: Peak learning rate.
        seed: Seed for initial weights, shuffling and augmentation.
    """
    from kfp_mindspore.workloads.digits.network import LeNet5
    from mindspore import nn

    dataset = Dataset.open(os.environ[DATASET_VARIABLE])
    training.set_seed(seed)
    network = LeNet5(classes=len(dataset.labels))
    return training.fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), learning_rate, weight_decay=WEIGHT_DECAY),
        config=training.TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            schedule=training.Schedule(name="cosine", end=0.01, warmup_epochs=epochs / 10),
            metrics=["accuracy"],
            augment=distort,
            seed=seed,
            network_arguments={"classes": len(dataset.labels)},
        ),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train LeNet-5 on digits.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)
    train(options.epochs, options.batch_size, options.learning_rate, options.seed)


if __name__ == "__main__":
    main()
