"""Trains a network that is named, on the dataset that KFP_MINDSPORE_DATASET_DIR names.

Example:
    python -m kfp_mindspore.training my_network:LeNet5 --network-arguments '{"classes": 10}' --epochs 5
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore import training
from kfp_mindspore.errors import KfpMindSporeError, UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, train and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.training", description="Train a network.")
    parser.add_argument("network", help="module:factory of a function or class that returns a Cell")
    parser.add_argument("--network-arguments", type=json.loads, default={}, help="its keyword arguments, as JSON")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--optimizer", default="Adam", help="a class of mindspore.nn")
    parser.add_argument("--loss", default="CrossEntropyLoss", help="a class of mindspore.nn")
    parser.add_argument("--metrics", default="accuracy", help="names of metrics, with commas between")
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args(arguments)
    try:
        train(given)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def train(given: argparse.Namespace) -> training.FitResult:
    """Train as the command line says."""
    factory = find_factory(given.network)
    training.set_seed(given.seed)
    network = factory(**given.network_arguments)
    return training.fit(
        network,
        loss=_find_class(given.loss)(),
        optimizer=_find_class(given.optimizer)(network.trainable_params(), learning_rate=given.learning_rate),
        epochs=given.epochs,
        batch_size=given.batch_size,
        metrics=[name for name in given.metrics.split(",") if name],
        seed=given.seed,
        network_factory=given.network,
        network_arguments=given.network_arguments,
    )


def find_factory(name: str) -> Any:
    """Import what `module:factory` names; modules of the working directory count.

    Raises:
        UserError: There is no such module, or nothing of that name in it.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise UserError(f"network {name}: no module {module_name} in {here} or on the Python path") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"network {name}: module {module_name} has no {attribute or 'factory'}") from None


def _find_class(name: str) -> Any:
    from mindspore import nn

    found = getattr(nn, name, None)
    if not isinstance(found, type):
        raise UserError(f"mindspore.nn has no class {name}")
    return found


if __name__ == "__main__":
    sys.exit(main())
