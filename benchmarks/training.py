"""How much slower is a step of `training.fit` with every feature than a bare TrainOneStepCell loop?

LeNet-5 on digits, and the Vision Transformer of the workload `vit` on a part of Fashion-MNIST, in one process, the
candidates in turn. A figure is the median over epochs of an epoch's wall-clock time divided by its steps, without the
first epoch, which compiles. It includes the time between epochs: validation, callbacks, metrics.jsonl and one
checkpoint per epoch. The bare loop only shuffles.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import build_parser, build_target, compute_ratios, print_result, run_in_turn

from kfp_mindspore import training
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.workloads.digits.network import LeNet5
from kfp_mindspore.workloads.vit.network import Network as VisionTransformer

import mindspore  # isort: skip
from mindspore import Tensor, nn  # isort: skip
from mindspore.train import Callback, EarlyStopping, ReduceLROnPlateau  # isort: skip


@dataclass(frozen=True)
class Case:
    """A network and its data.

    Args:
        dataset: Name of a data set.
        build: Builds the network.
        batch: Samples of a step.
        epochs: Epochs of a measurement, with --quick and without.
        goal: Largest ratio of fit and the bare loop.
        options: Further options of load_dataset.
    """

    dataset: str
    build: Callable[[], Any]
    batch: int
    epochs: tuple[int, int]
    goal: float
    options: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "LeNet-5, digits": Case("digits", LeNet5, 32, (8, 15), 1.15),
    "ViT, Fashion-MNIST": Case(
        "fashion_mnist",
        partial(VisionTransformer, 28, 10),
        64,
        (4, 6),
        1.05,
        {"limit": 4000, "validation_fraction": 0.05},
    ),
}


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


def make_parts(case: Case) -> tuple[Any, Any, Any]:
    training.set_seed(1)
    network = case.build()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return network, loss, nn.Adam(network.trainable_params(), 1e-3)


def time_bare_loop(case: Case, dataset: Dataset, epochs: int) -> float:
    train = read_samples(dataset, "train")
    features, labels = train.inputs["image"], train.target
    network, loss, optimizer = make_parts(case)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    step.set_train()
    clock = Clock()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(features))
        value = None
        for start in range(0, len(features) - case.batch + 1, case.batch):
            chosen = order[start : start + case.batch]
            value = step(Tensor(features[chosen]), Tensor(labels[chosen]))
        value.asnumpy()
        clock.on_train_epoch_end(None)
    return clock.measure_step(len(features) // case.batch)


def time_fit(case: Case, dataset: Dataset, epochs: int) -> float:
    network, loss, optimizer = make_parts(case)
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
                batch_size=case.batch,
                metrics=["accuracy"],
                checkpoint_dir=Path(root, "checkpoints"),
                output_dir=Path(root, "output"),
                verbose=False,
            ),
        )
    return clock.measure_step(dataset.splits["train"] // case.batch)


def main() -> None:
    options = build_parser(__doc__ or "").parse_args()
    rounds = 3 if options.quick else 8
    targets, bars = [], {}
    with tempfile.TemporaryDirectory() as root:
        for title, case in CASES.items():
            dataset = load_dataset(case.dataset, Path(root, case.dataset), **case.options)
            epochs = case.epochs[not options.quick]
            candidates: dict[str, Callable[[], float]] = {
                "fit": partial(time_fit, case, dataset, epochs),
                "bare loop": partial(time_bare_loop, case, dataset, epochs),
            }
            seconds = run_in_turn(candidates, rounds)
            ratios = compute_ratios(seconds["fit"], seconds["bare loop"])
            name = f"{title}: fit with callbacks, metrics, validation and checkpoints / bare loop"
            targets.append(build_target(name, ratios, case.goal))
            bars[f"{title}: milliseconds per step"] = {
                name: [round(value * 1000, 3) for value in values] for name, values in seconds.items()
            }
    epochs_by_case = {title: case.epochs[not options.quick] for title, case in CASES.items()}
    print_result("training", targets, {"bars": bars, "epochs": epochs_by_case})


if __name__ == "__main__":
    main()
