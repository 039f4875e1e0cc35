"""Trainings for test_gang.py: the same with one worker and with several; writes weights and values by scenario.

Arguments: the root, and the names of the trainings; `lose` is a last one in which worker 1 exits.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore import training
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.workloads.digits.network import LeNet5

import mindspore as ms  # isort: skip
from mindspore import nn  # isort: skip
from mindspore.train import Callback  # isort: skip

ROOT = Path(sys.argv[1])
WORKER = training.init_distributed()
SAMPLES = read_samples(Dataset.open(os.environ["KFP_MINDSPORE_DATASET_DIR"]), "train", count=320)
TRAIN = (SAMPLES.inputs["image"], SAMPLES.target)
VALIDATION = (TRAIN[0][:100], TRAIN[1][:100])


class Dense(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 16), nn.ReLU(), nn.Dense(16, 10))

    def construct(self, image: Any) -> Any:
        return self.layers(image)


class Normalized(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 10))

    def construct(self, image: Any) -> Any:
        return self.layers(image)


class Slow(Callback):
    """Sleeps on one rank after each step."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_train_step_end(self, run_context: Any) -> None:
        if self.rank == WORKER.rank:
            time.sleep(0.2)


class Exit(Callback):
    """Ends worker 1 at step 3."""

    def on_train_step_end(self, run_context: Any) -> None:
        if WORKER.rank == 1 and run_context.original_args().cur_step_num == 3:
            os._exit(9)


def fit(network: Any = None, data: Any = TRAIN, **arguments: Any) -> tuple[Any, Any]:
    # Different initial weights: those of rank 0 are broadcast.
    training.set_seed(7 + WORKER.rank)
    network = (network or Dense)()
    callbacks = arguments.pop("callbacks", ())
    validation = arguments.pop("validation", None)
    result = training.fit(
        network,
        data,
        # MindSpore compiles CrossEntropyLoss in three times the time.
        loss=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        optimizer=nn.Momentum(network.trainable_params(), 0.05, 0.9),
        validation=validation,
        callbacks=callbacks,
        config=training.TrainingConfig(**{"epochs": 2, "batch_size": 32, "verbose": False, **arguments}),
    )
    return result, network


def take(count: int) -> Any:
    return TRAIN[0][:count], TRAIN[1][:count]


def one_step_cell(network: Any, optimizer: Any) -> Any:
    return nn.TrainOneStepCell(network, optimizer)


# Arguments of fit by name; test_gang.py compares the results of one worker and of several.
SCENARIOS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "lenet": lambda: fit(LeNet5, epochs=5, metrics=["accuracy", "f1_macro"], validation=VALIDATION),
    "uneven": lambda: fit(
        data=take(66),
        drop_last=False,
        accumulate=2,
        clip_norm=0.5,
        metrics=["accuracy"],
        validation=take(2),
        callbacks=Slow(1),
        output_dir=ROOT / "output",
    ),
    "float16": lambda: fit(precision="float16"),
    "own_step": lambda: fit(batch_size=36, train_step=one_step_cell),
    "batch_norm": lambda: fit(Normalized, epochs=5, validation=VALIDATION, accumulate=int(os.environ["PIECES"])),
}


def main() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kfp_mindspore.training.reports.epoch_report").addHandler(handler)
    values, weights = {}, {}
    for name in (name for name in SCENARIOS if name in sys.argv):
        result, network = SCENARIOS[name]()
        values[name] = {"steps": result.steps, "metrics": dict(result.metrics), "history": list(result.history)}
        for parameter in network.get_parameters():
            weights[f"{name}/{parameter.name}"] = parameter.asnumpy().copy()
        print("done", name, flush=True)
    values["warnings"] = records
    np.savez(ROOT / f"weights-{WORKER.rank}.npz", **weights)
    (ROOT / f"values-{WORKER.rank}.json").write_text(json.dumps(values))
    if "lose" in sys.argv:
        fit(callbacks=Exit())
        raise AssertionError(ms.__version__)


if __name__ == "__main__":
    main()
