"""Training of a convolutional network by `fit`: `python fit_script.py DIRECTORY [--checkpoints]`.

Rank 0 writes the samples per second of the epochs after the first into DIRECTORY/rate. The network is compute bound: a
step of 64 samples takes about 0.2 s on one core, and its gradients have 0.2 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kfp_mindspore import training

from mindspore import nn  # isort: skip


def main() -> None:
    """Train three epochs."""
    directory = Path(sys.argv[1])
    is_saving = "--checkpoints" in sys.argv[2:]
    training.set_seed(1)
    network = nn.SequentialCell(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Dense(64 * 7 * 7, 10),
    )
    generator = np.random.default_rng(1)
    images = generator.random((1920, 1, 28, 28), np.float32)
    labels = generator.integers(0, 10, 1920).astype(np.int32)
    result = training.fit(
        network,
        (images, labels),
        loss=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        optimizer=nn.Momentum(network.trainable_params(), 0.01, 0.9),
        config=training.TrainingConfig(
            epochs=3,
            batch_size=64,
            checkpoint_dir=directory / "checkpoints" if is_saving else None,
            checkpoint_steps=10 if is_saving else None,
        ),
    )
    rates = [record["samples_per_second"] for record in result.history[1:]]
    rate = directory / "rate"
    if not rate.exists():
        temporary = directory / f".rate-{id(rate)}"
        temporary.write_text(repr(sum(rates) / len(rates)))
        temporary.replace(rate)


if __name__ == "__main__":
    main()
