"""Makes the commands that `MSJobClient.train` runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.errors import ValidationError

NETWORK_PARAMETERS = ("epochs", "batch_size", "seed", "loss", "optimizer", "learning_rate", "metrics")


def build_network_command(network: str, arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Return the command that trains a network by `kfp_mindspore.training`.

    Args:
        network: `module:factory`.
        arguments: The factory's keyword arguments.
        parameters: Of NETWORK_PARAMETERS.

    Raises:
        ValidationError: An argument is wrong.
    """
    errors = []
    module, colon, factory = network.partition(":")
    if not colon or not factory.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        errors.append(f"network: must be 'module:factory', got {network!r}")
    errors += [
        f"trainer_parameters.{name}: unknown, must be one of {', '.join(NETWORK_PARAMETERS)}"
        for name in parameters
        if name not in NETWORK_PARAMETERS
    ]
    try:
        text = json.dumps(dict(arguments))
    except TypeError as error:
        errors.append(f"network_arguments: must be JSON types ({error})")
    if errors:
        raise ValidationError(errors, subject="train")
    metrics = parameters.get("metrics", ())
    options = {**parameters, "metrics": metrics if isinstance(metrics, str) else ",".join(metrics) or None}
    return ["python", "-m", "kfp_mindspore.training", network, "--network-arguments", text, *_spell_options(options)]


def build_script_command(script: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return the command that runs a script with options by name: `{"epochs": 5}` becomes `--epochs 5`."""
    return ["python", script, *_spell_options(parameters)]


def _spell_options(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words
