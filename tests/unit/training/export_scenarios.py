"""Trainings for test_exportability.py in one process, each with the check before the first epoch."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scenario_runner import run_scenarios

from kfp_mindspore import training
from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir import export_mindir

import mindspore as ms  # isort: skip
from mindspore import dataset as pipelines  # isort: skip
from mindspore import nn  # isort: skip

sys.path.append(str(Path(__file__).parents[2] / "support" / "models"))

import sequence_networks as networks  # isort: skip

GENERATOR = np.random.default_rng(0)
SERIES = GENERATOR.normal(size=(64, 3, 4)).astype(np.float32)
LENGTHS = GENERATOR.integers(1, 4, 64).astype(np.int32)
MASK = np.arange(3)[None] >= LENGTHS[:, None]
ROWS = GENERATOR.normal(size=(64, 4)).astype(np.float32)
LABELS = GENERATOR.integers(0, 3, 64).astype(np.int32)
SCENARIOS: dict[str, Callable[[Path], Any]] = {}


class Epochs(ms.train.Callback):
    def __init__(self) -> None:
        self.count = 0
        self.numbers: list[float] = []

    def on_train_epoch_begin(self, run_context: Any) -> None:
        self.count += 1
        self.numbers += [random.random(), np.random.random()]


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    SCENARIOS[function.__name__] = function
    return function


def train(network: Any, data: Any, output: Path | None, **options: Any) -> dict[str, Any]:
    """Return the history, or the error's exit code and lines; the epochs begun; what was printed."""
    epochs, printed = Epochs(), io.StringIO()
    begun = time.perf_counter()
    config = training.TrainingConfig(**{"epochs": 3, "batch_size": 16, "output_dir": output, **options})
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        try:
            result = training.fit(
                network,
                data,
                loss=None if options.get("loss", 1) is None else nn.CrossEntropyLoss(),
                optimizer=nn.Adam(network.trainable_params(), 0.01),
                callbacks=[epochs],
                config=config,
            )
            found["losses"] = [record["loss"] for record in result.history]
        except UserError as error:
            found |= {"code": error.exit_code, "lines": str(error).splitlines()}
    return found | {
        "epochs": epochs.count,
        "numbers": epochs.numbers,
        "printed": printed.getvalue(),
        "seconds": time.perf_counter() - begun,
    }


@scenario
def refused(path: Path) -> Any:
    ragged = {"x": SERIES, "lengths": LENGTHS}
    cases = {
        "GRU": (networks.Gated(), (ragged, LABELS)),
        "LSTM": (networks.Gated(nn.LSTM), (ragged, LABELS)),
        "Transformer": (networks.Masked(), ({"x": SERIES, "mask": MASK}, LABELS)),
        "own": (networks.Nested(), (ROWS, LABELS)),
        "whole": (networks.Whole(), (SERIES, LABELS)),
        "branch": (networks.Branch(), (ROWS, LABELS)),
        "unfit": (networks.Unfit(), (ROWS, LABELS)),
    }
    return {name: train(network, data, path / name) for name, (network, data) in cases.items()}


@scenario
def fixed(path: Path) -> Any:
    """A network that exports with a fixed batch only."""
    network = networks.Gated()
    data = ({"x": SERIES, "lengths": LENGTHS}, LABELS)
    found = train(network, data, path, epochs=1, export_check=4)
    bundle = export_mindir(
        path / "checkpoint", path / "model", network=network, batch=4, samples={"x": SERIES[:9], "lengths": LENGTHS[:9]}
    )
    with contextlib.suppress(UserError):
        export_mindir(path / "checkpoint", path / "other", network=network, samples=data[0])
    return found | {"difference": bundle.signature.verified["max_abs_diff"], "other": (path / "other").exists()}


@scenario
def skipped(path: Path) -> Any:
    data = ({"x": SERIES, "lengths": LENGTHS}, LABELS)
    return {
        "off": train(networks.Gated(), data, path / "off", epochs=1, export_check="off"),
        "no output": train(networks.Gated(), data, None, epochs=1),
    }


@scenario
def training_is_unchanged(path: Path) -> Any:
    found = {}
    for name, check in (("with", "free"), ("without", "off"), ("cached", "free")):
        training.set_seed(7)
        network = networks.Random()
        found[name] = train(network, (ROWS, LABELS), path / name, export_check=check, checkpoint_dir=path / f"c{name}")
        found[name]["weights"] = [parameter.asnumpy().tolist() for parameter in network.get_parameters()]
    (path / "with" / "checkpoint").rename(path / "kept")
    training.set_seed(7)
    found["resumed"] = train(networks.Random(), (ROWS, LABELS), path / "with", epochs=4, checkpoint_dir=path / "cwith")
    return found


@scenario
def pipeline(path: Path) -> Any:
    found = []
    # Without the checks that have passed before.
    os.environ["KFP_MINDSPORE_HOME"] = str(path)
    for check in ("free", "off"):
        training.set_seed(7)
        ms.dataset.config.set_seed(3)
        batches = pipelines.NumpySlicesDataset({"x": ROWS, "label": LABELS}, shuffle=True).batch(16)
        found.append(train(networks.Random(), batches, path / check, export_check=check))
    return found


@scenario
def changed_code_is_checked_again(path: Path) -> Any:
    sys.path.insert(0, str(path))
    source = path / "own_network.py"
    found = []
    for body in ("return self.dense(x)", "return self.dense(x) * 2"):
        source.write_text(
            "from mindspore import nn\n\n\nclass Own(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.dense = nn.Dense(4, 3)\n\n    def construct(self, x):\n        {body}\n"
        )
        sys.modules.pop("own_network", None)
        shutil.rmtree(path / "__pycache__", ignore_errors=True)
        for _ in range(2):
            import own_network

            found.append(train(own_network.Own(), (ROWS, LABELS), path / "out", epochs=1)["printed"])
    return found


if __name__ == "__main__":
    run_scenarios(SCENARIOS)
