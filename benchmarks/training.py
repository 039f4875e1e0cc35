"""How much slower is a step of `training.fit` with every feature than a bare TrainOneStepCell loop?

LeNet-5 on digits, batch 32, in one process, the candidates in turn. A figure is the median over epochs of an epoch's
wall-clock time divided by its steps, without the first epoch, which compiles. It includes the time between epochs:
validation, callbacks, metrics.jsonl and one checkpoint per epoch. The bare loop only shuffles.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import build_parser, build_target, compute_ratios, print_result, run_in_turn

from kfp_mindspore import training
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.digits.network import LeNet5
from kfp_mindspore.formats.dataset import Dataset

import mindspore  # isort: skip
from mindspore import Tensor, nn  # isort: skip
from mindspore.train import Callback, EarlyStopping, ReduceLROnPlateau  # isort: skip

BATCH = 32
GOAL = 1.3


class Clock(Callback):  # type: ignore[misc]
    """Records the time at the end of each epoch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Record the time."""
        self.times.append(time.perf_counter())

    def measure_step(self, steps: int) -> float:
        """Return the median seconds per step."""
        return float(statistics.median(np.diff(self.times))) / steps


def make_parts() -> tuple[Any, Any, Any]:
    training.set_seed(1)
    network = LeNet5()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return network, loss, nn.Adam(network.trainable_params(), 1e-3)


def time_bare_loop(dataset: Dataset, epochs: int) -> float:
    train = read_samples(dataset, "train")
    features, labels = train.inputs["image"], train.target
    network, loss, optimizer = make_parts()
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    step.set_train()
    clock = Clock()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(features))
        value = None
        for start in range(0, len(features) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            value = step(Tensor(features[chosen]), Tensor(labels[chosen]))
        value.asnumpy()
        clock.on_train_epoch_end(None)
    return clock.measure_step(len(features) // BATCH)


def time_fit(dataset: Dataset, epochs: int) -> float:
    network, loss, optimizer = make_parts()
    clock = Clock()
    with tempfile.TemporaryDirectory() as root:
        training.fit(
            network,
            dataset,
            loss=loss,
            optimizer=optimizer,
            callbacks=[
                EarlyStopping("eval_loss", patience=epochs, restore_best_weights=True),
                ReduceLROnPlateau("eval_loss", patience=epochs),
                clock,
            ],
            config=training.TrainingConfig(
                epochs=epochs,
                batch_size=BATCH,
                metrics=["accuracy"],
                checkpoint_dir=Path(root, "checkpoints"),
                output_dir=Path(root, "output"),
                verbose=False,
            ),
        )
    return clock.measure_step(dataset.splits["train"] // BATCH)


def main() -> None:
    options = build_parser(__doc__ or "").parse_args()
    rounds, epochs = (3, 8) if options.quick else (8, 15)
    with tempfile.TemporaryDirectory() as root:
        dataset = load_dataset("digits", Path(root, "digits"))
        candidates: dict[str, Callable[[], float]] = {
            "fit": lambda: time_fit(dataset, epochs),
            "bare loop": lambda: time_bare_loop(dataset, epochs),
        }
        seconds = run_in_turn(candidates, rounds)
    bare = seconds["bare loop"]
    title = "fit with callbacks, metrics, validation and checkpoints / bare loop"
    targets = [build_target(title, compute_ratios(seconds["fit"], bare), GOAL)]
    milliseconds = {name: [round(value * 1000, 3) for value in values] for name, values in seconds.items()}
    print_result("training", targets, {"bars": {"milliseconds per step": milliseconds}, "epochs": epochs})


if __name__ == "__main__":
    main()
