"""A training script that waits in a step or in a checkpoint, for a test to inject a fault."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore import training

import mindspore  # isort: skip
from mindspore import nn  # isort: skip
from mindspore.train import Callback, EarlyStopping  # isort: skip


class Hold(Callback):
    """Creates a file and waits in a step."""

    def __init__(self, root: Path, hold_step: int) -> None:
        self.root = root
        self.hold_step = hold_step

    def on_train_step_begin(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.hold_step:
            # A signal that arrives now is received during a step.
            (self.root / "in-step").touch()
            time.sleep(1)


def hold_checkpoint(root: Path, name: str) -> None:
    """Create a file and wait after the first file of the checkpoint `name` was written."""
    save = mindspore.save_checkpoint

    def save_and_hold(parameters: Any, path: str) -> None:
        save(parameters, path)
        if Path(path).parent.name.startswith(f".{name}."):
            (root / "in-checkpoint").touch()
            time.sleep(60)

    mindspore.save_checkpoint = save_and_hold


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint-steps", type=int)
    parser.add_argument("--hold-step", type=int, default=0)
    parser.add_argument("--hold-checkpoint", default="")
    parser.add_argument("--trackers", nargs="*")
    options = parser.parse_args()
    if options.hold_checkpoint:
        hold_checkpoint(options.root, options.hold_checkpoint)
    training.set_seed(1)
    network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dropout(p=0.2), nn.Dense(32, 10))
    training.fit(
        network,
        loss=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        optimizer=nn.Adam(network.trainable_params(), 0.01),
        callbacks=[
            EarlyStopping("accuracy", patience=10),
            Hold(options.root, options.hold_step),
        ],
        config=training.TrainingConfig(
            epochs=options.epochs,
            metrics=["accuracy"],
            checkpoint_dir=options.checkpoints or options.root / "checkpoints",
            checkpoint_steps=options.checkpoint_steps,
            output_dir=options.root / "output",
            network_factory="training_script:build",
            trackers=options.trackers,
        ),
    )
    np.savez(options.root / "weights.npz", *[parameter.asnumpy() for parameter in network.trainable_params()])


if __name__ == "__main__":
    main()
