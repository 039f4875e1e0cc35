"""Trains a named network on the dataset in KFP_MINDSPORE_DATASET_DIR.

Example:
    python -m kfp_mindspore.training my_network:LeNet5 --network-arguments '{"classes": 10}' --schedule cosine
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore import training
from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.errors import KfpMindSporeError, UserError, suggest
from kfp_mindspore.formats.dataset import TASKS, Dataset
from kfp_mindspore.mindir.parameters.network import build_network
from kfp_mindspore.options import read_descriptions
from kfp_mindspore.settings import DATASET_VARIABLE
from kfp_mindspore.training.config import TrainingConfig

if TYPE_CHECKING:
    from kfp_mindspore.training.loop import FitResult

# TrainingConfig fields that have no JSON form, or an argument to themselves.
_WITHOUT_FLAG = ("augment", "train_step", "network_factory", "network_arguments", "metrics")
_SUGGESTION_PREFIX = "KUBEFLOW_TRAINER_OPT_"
_LISTS = ("freeze", "initial_optional", "trackers")


def list_flags() -> list[str]:
    """Return the TrainingConfig fields that are flags."""
    return [field.name for field in dataclasses.fields(TrainingConfig) if field.name not in _WITHOUT_FLAG]


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; TrainingConfig's flags have that class's defaults and descriptions."""
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.training", description="Train a network.")
    parser.add_argument("network", help="module:factory of a function or class that returns a Cell")
    parser.add_argument("--network-arguments", type=_parse_object, default={}, help="its keyword arguments, as JSON")
    parser.add_argument("--optimizer", default="Adam", help="a class of mindspore.nn")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="the peak one, with a schedule")
    parser.add_argument("--optimizer-arguments", type=_parse_object, default={}, help="others of it, as JSON")
    parser.add_argument("--task", choices=TASKS, help="default: of the dataset; selects loss and metrics")
    parser.add_argument("--loss", help="a class of mindspore.nn; default: of the task")
    parser.add_argument("--loss-arguments", type=_parse_object, default={}, help="of it, as JSON")
    parser.add_argument("--metrics", help="comma-separated names; default: of the task")
    options = parser.add_argument_group("options of TrainingConfig; dicts and lists are JSON")
    described = read_descriptions(TrainingConfig)
    for field in dataclasses.fields(TrainingConfig):
        if field.name in _WITHOUT_FLAG:
            continue
        flag = "--" + field.name.replace("_", "-")
        settings: dict[str, Any] = {"dest": field.name, "default": None, "help": _shorten(described[field.name])}
        if isinstance(field.default, bool):
            options.add_argument(flag, action=argparse.BooleanOptionalAction, **settings)
        else:
            options.add_argument(flag, type=_parse_list if field.name in _LISTS else _parse_value, **settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, train and return the exit code."""
    parser = build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # Behind the others: a search changes what its template has.
        options = parser.parse_args([*words, *read_suggestions(vars(parser.parse_args(words)), os.environ)])
        import_mindspore()
        _train(options)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def read_suggestions(known: Collection[str], environment: Mapping[str, str]) -> list[str]:
    """Return the options that an OptimizationJob of Kubeflow Trainer has chosen, as words of the command line.

    Args:
        known: Names of options.
        environment: Variables such as KUBEFLOW_TRAINER_OPT_LEARNING_RATE.

    Raises:
        UserError: There is no such option.
    """
    booleans = {field.name for field in dataclasses.fields(TrainingConfig) if isinstance(field.default, bool)}
    words = []
    for variable in sorted(name for name in environment if name.startswith(_SUGGESTION_PREFIX)):
        name, value = variable.removeprefix(_SUGGESTION_PREFIX).lower(), environment[variable]
        if name not in known:
            raise UserError(f"{variable}: the training has no option {name!r}{suggest(name, known)}")
        flag = name.replace("_", "-")
        if name in booleans:
            words.append(f"--{flag}" if value.lower() == "true" else f"--no-{flag}")
        else:
            words.append(f"--{flag}={value}")
    return words


def _train(options: argparse.Namespace) -> FitResult:
    """Train with the command line's options.

    Raises:
        UserError: An option is wrong.
    """
    given = {name: getattr(options, name) for name in list_flags() if getattr(options, name) is not None}
    config = TrainingConfig(
        **given, network_factory=options.network, network_arguments=options.network_arguments, metrics=()
    )
    directory = os.environ.get(DATASET_VARIABLE)
    if not directory:
        raise UserError(f"{DATASET_VARIABLE} is not set", hint="It names the dataset directory.")
    dataset = Dataset.open(directory)
    task = options.task or dataset.task
    training.set_seed(config.seed)
    network = build_network(options.network, options.network_arguments)

    from kfp_mindspore.training.computation import losses

    if options.loss:
        loss = _build(options.loss, "loss", **options.loss_arguments)
    else:
        loss = losses.build_task_loss(task, dataset.labels)
    if options.metrics is None:
        metrics = losses.TASK_METRICS.get(task, ())
    else:
        metrics = tuple(name for name in options.metrics.split(",") if name)
    optimizer = _build(
        options.optimizer,
        "optimizer",
        network.trainable_params(),
        learning_rate=options.learning_rate,
        **options.optimizer_arguments,
    )
    return training.fit(
        network, dataset, loss=loss, optimizer=optimizer, config=dataclasses.replace(config, metrics=metrics)
    )


def _build(name: str, field: str, *positional: object, **arguments: object) -> Any:
    """Return an instance of a mindspore.nn class."""
    from mindspore import nn

    found = getattr(nn, name, None)
    base = nn.Optimizer if field == "optimizer" else nn.LossBase
    if not (isinstance(found, type) and issubclass(found, base)):
        known = [other for other in dir(nn) if isinstance(kind := getattr(nn, other), type) and issubclass(kind, base)]
        raise UserError(f"{field}: mindspore.nn has no {field} {name!r}{suggest(name, known)}")
    try:
        return found(*positional, **arguments)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"{field}: {name} cannot be built: {str(error).strip().splitlines()[0]}") from error


def _shorten(description: str) -> str:
    """Return the first sentence; argparse formats the text."""
    return re.split(r"(?<=\.)\s|; ", description)[0].rstrip(".").replace("%", "%%")


def _parse_value(text: str) -> Any:
    """Parse JSON, or return other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_list(text: str) -> Any:
    value = _parse_value(text)
    return value.split(",") if isinstance(value, str) else value


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON, got {text!r} ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
