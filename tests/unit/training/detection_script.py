"""Trainings of a tiny detector for test_detection.py; writes results.json. Arguments: the root and a training."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore import training
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.workloads.detection.network import build_network

from kfp_mindspore.training.detection import DetectionLoss  # isort: skip
from mindspore import nn  # isort: skip
from mindspore.train import Callback  # isort: skip

ROOT = Path(sys.argv[1])
WORKER = training.init_distributed()
DATASET = Dataset.open(os.environ["KFP_MINDSPORE_DATASET_DIR"])
FACTORY = "kfp_mindspore.workloads.detection.network:build_network"


class Interrupt(Callback):
    """Raises in the second epoch."""

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == 4:
            raise KeyboardInterrupt


def train(name: str, classes: int = 3, callbacks: Any = (), **options: Any) -> tuple[Any, Any]:
    training.set_seed(0)
    network = build_network([16, 16], classes, 6, width=16, layers=2, heads=2)
    result = training.fit(
        network,
        DATASET,
        loss=DetectionLoss(1.5),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), 1e-3, weight_decay=0.0),
        callbacks=callbacks,
        config=training.TrainingConfig(
            epochs=3,
            batch_size=4,
            metrics=("map50", "map50_95"),
            ema=0.9,
            checkpoint_dir=ROOT / f"checkpoints-{name}",
            output_dir=ROOT / name,
            export_check="off",
            network_factory=FACTORY,
            **options,
        ),
    )
    return network, result


def describe(network: Any, result: Any) -> dict[str, Any]:
    weights = [float(value) for item in network.get_parameters() for value in np.ravel(item.asnumpy())[:5]]
    return {"metrics": dict(result.metrics), "weights": weights, "resumed": result.resumed_from is not None}


def list_changed(first: Any, second: Any) -> list[str]:
    pairs = zip(first.get_parameters(), second.get_parameters(), strict=True)
    # The average of equal weights may differ in the last digit.
    names = [one.name.split(".")[0] for one, other in pairs if np.abs(one.asnumpy() - other.asnumpy()).max() > 1e-6]
    return list(dict.fromkeys(names))


def main() -> None:
    results: dict[str, Any] = {"plain": describe(*train("plain"))}
    if "plain" not in sys.argv:
        try:
            train("resumed", callbacks=[Interrupt()])
        except KeyboardInterrupt:
            results["resumed"] = describe(*train("resumed"))
        fresh = build_network([16, 16], 3, 6, width=16, layers=2, heads=2)
        frozen, _ = train("frozen", freeze=("stem.*", "patch.*", "blocks.*", "norm.*", "class", "queries", "positions"))
        results["frozen"] = list_changed(fresh, frozen)
        start = {"initial": str(ROOT / "plain" / "checkpoint"), "initial_strict": False}
        other, _ = train("head", classes=5, **start)
        results["head"] = len(other.parameters_dict()["classes.4.bias"].asnumpy())
    if WORKER.is_writer:
        (ROOT / "results.json").write_text(json.dumps(results))


main()
