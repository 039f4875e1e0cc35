"""A data-parallel training script."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore import training

import mindspore as ms  # isort: skip
from mindspore import nn  # isort: skip
from mindspore.train import Callback, EarlyStopping, ReduceLROnPlateau  # isort: skip

ROOT = Path(sys.argv[1])
# The rank that receives SIGTERM; the others must stop after the same step.
INTERRUPTED = sys.argv[2] if len(sys.argv) > 2 else ""


class Interrupt(Callback):
    def on_train_step_end(self, run_context: Any) -> None:
        if os.environ.get("MS_NODE_ID") == INTERRUPTED and run_context.original_args().cur_step_num == 45:
            os.kill(os.getpid(), signal.SIGTERM)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image: Any) -> Any:
        return self.layers(image)


def main() -> None:
    worker = training.init_distributed()
    # Different initial weights: those of rank 0 are broadcast.
    training.set_seed(7 + worker.rank)
    network = Network()
    result = training.fit(
        network,
        loss=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        optimizer=nn.Adam(network.trainable_params(), 0.01),
        callbacks=[
            Interrupt(),
            EarlyStopping("loss", patience=10),
            ReduceLROnPlateau("loss", patience=1, factor=0.5, min_delta=0.5),
        ],
        config=training.TrainingConfig(
            epochs=4,
            batch_size=32,
            metrics=["accuracy"],
            checkpoint_dir=ROOT / "checkpoints",
            output_dir=ROOT / "output",
            network_factory="parallel_script:Network",
        ),
    )
    weights = np.concatenate([parameter.asnumpy().ravel() for parameter in network.trainable_params()])
    np.savez(ROOT / f"weights-{worker.rank}.npz", weights=weights)
    print("loss", result.metrics["loss"], "of", worker.size, ms.__version__)


if __name__ == "__main__":
    main()
