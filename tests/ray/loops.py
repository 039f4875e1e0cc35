"""Train loops on a small seeded problem, and the same training as a script of an MSJob."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

EPOCHS = 3


def train(config: dict[str, Any]) -> Any:
    """Train a dense network of 8 inputs for three epochs of 6 steps."""
    from mindspore import nn

    from kfp_mindspore import training

    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(96, 8)).astype(np.float32)
    labels = inputs[:, :4].argmax(axis=1).astype(np.int32)
    training.set_seed(3)
    network = nn.Dense(8, 4)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=config.get("learning_rate", 0.05))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    options = training.TrainingConfig(epochs=EPOCHS, batch_size=16, verbose=False, **config.get("options", {}))
    return training.fit(
        network,
        (inputs, labels),
        loss=loss,
        optimizer=optimizer,
        callbacks=config.get("callbacks", list)(),
        config=options,
    )


def kill_once(marker: str, rank: int, step: int) -> Any:
    """Return a callback that kills its worker, by SIGKILL, in one step of the first attempt."""
    from mindspore.train import Callback

    class Kill(Callback):
        def on_train_step_begin(self, run_context: Any) -> None:
            is_due = run_context.original_args().cur_step_num == step
            if is_due and os.environ.get("MS_NODE_ID", "0") == str(rank) and not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return [Kill()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    given = parser.parse_args()
    train({"options": {"output_dir": given.output_dir}, "learning_rate": given.learning_rate})
