"""Trains a named network on the dataset in KFP_MINDSPORE_DATASET_DIR.

Example:
    python -m kfp_mindspore.training my_network:LeNet5 --network-arguments '{"classes": 10}' --epochs 5
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore import training
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.mindir.network import build_network

if TYPE_CHECKING:
    from kfp_mindspore.training.loop import FitResult


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, train and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.training", description="Train a network.")
    parser.add_argument("network", help="module:factory of a function or class that returns a Cell")
    parser.add_argument("--network-arguments", type=json.loads, default={}, help="its keyword arguments, as JSON")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--optimizer", default="Adam", help="a class of mindspore.nn")
    parser.add_argument("--loss", default="CrossEntropyLoss", help="a class of mindspore.nn")
    parser.add_argument("--metrics", default="accuracy", help="comma-separated names of metrics")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)
    try:
        train(options)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def train(options: argparse.Namespace) -> FitResult:
    """Train with the options of the command line."""
    training.set_seed(options.seed)
    network = build_network(options.network, options.network_arguments)
    return training.fit(
        network,
        loss=_get_class(options.loss)(),
        optimizer=_get_class(options.optimizer)(network.trainable_params(), learning_rate=options.learning_rate),
        config=training.TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            metrics=[name for name in options.metrics.split(",") if name],
            seed=options.seed,
            network_factory=options.network,
            network_arguments=options.network_arguments,
        ),
    )


def _get_class(name: str) -> Any:
    from mindspore import nn

    found = getattr(nn, name, None)
    if not isinstance(found, type):
        raise UserError(f"mindspore.nn has no class {name}")
    return found


if __name__ == "__main__":
    sys.exit(main())
