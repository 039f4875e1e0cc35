"""Job commands: those that MSJobClient builds for a function, network or script, and what a command line runs."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.outputs import check_directory
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, OUTPUT_VARIABLE

_PYTHON_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
# Flags for `python -m kfp_mindspore.training`.
NETWORK_PARAMETERS = (
    "accumulate",
    "batch_size",
    "checkpoint_epochs",
    "checkpoint_steps",
    "class_weights",
    "clip_norm",
    "clip_value",
    "deterministic",
    "device",
    "device_id",
    "early_stopping",
    "ema",
    "epochs",
    "export_check",
    "freeze",
    "initial",
    "initial_optional",
    "keep_best",
    "keep_checkpoints",
    "learning_rate",
    "loss",
    "loss_arguments",
    "metrics",
    "no_drop_last",
    "no_initial_strict",
    "no_shuffle",
    "no_verbose",
    "optimizer",
    "optimizer_arguments",
    "parallel_mode",
    "parallel_options",
    "precision",
    "reduce_on_plateau",
    "schedule",
    "seed",
    "task",
    "trackers",
    "unfreeze",
    "validation_epochs",
)


def build_function_command(
    function: Callable[..., Any],
    parameters: dict[str, Any] | None = None,
    *,
    packages_to_install: Sequence[str] = (),
    pip_index_url: str | None = None,
) -> list[str]:
    """Return the command that runs a Python function, as TrainingClient's `train_func` does.

    Args:
        function: A function with no or one argument. Only its source is sent, without decorators: it imports what it
            needs itself.
        parameters: The argument; None calls the function without one.
        packages_to_install: Installed by pip before the call.
        pip_index_url: Package index; default pip's own configuration.

    Raises:
        ValidationError: The source is not available, the function is a class, a lambda or a closure, or the parameters
            do not fit it.
    """
    if not inspect.isfunction(function):
        kind = "a class" if inspect.isclass(function) else repr(function)
        raise ValidationError([f"train_func: must be a function, got {kind}"])
    name = function.__name__
    if not name.isidentifier():
        raise ValidationError([f"train_func: must be a function with a name of its own, got {name}"])
    _check_parameters(function, parameters)
    if names := getattr(getattr(function, "__code__", None), "co_freevars", ()):
        raise ValidationError(
            [f"train_func: {name} uses {', '.join(names)} of its enclosing function, which is not sent"],
            hint="Pass it in parameters.",
        )
    try:
        lines = inspect.getsource(function)
    except (OSError, TypeError):
        raise ValidationError(
            [f"train_func: the source of {name} cannot be found"],
            hint="Define it in a file or a notebook's cell.",
        ) from None
    source = textwrap.dedent(lines)
    # Decorators may need names in the function's module.
    source = source[source.index(f"def {name}") :]
    call = f"{name}({parameters!r})" if parameters is not None else f"{name}()"
    program = f"{source.rstrip()}\n\n{call}\n"
    if packages_to_install:
        index = ["-i", pip_index_url] if pip_index_url else []
        command = ["-m", "pip", "install", "--quiet", *index, *packages_to_install]
        program = f"import subprocess, sys\nsubprocess.run([sys.executable, *{command!r}], check=True)\n{program}"
    # Not evaluated: annotations may need names in the function's module.
    program = f"from __future__ import annotations\n\n{program}"
    # Kubernetes reads `$(NAME)` in a command as a variable; doubled, a dollar sign is one.
    return ["python", "-u", "-c", program.replace("$", "$$")]


def _check_parameters(function: Callable[..., Any], parameters: dict[str, Any] | None) -> None:
    """Raise a ValidationError for a parameter whose source is no literal, or a function that does not accept them."""
    for key, value in (parameters or {}).items():
        try:
            ast.literal_eval(repr(value))
        except (ValueError, SyntaxError):
            raise ValidationError(
                [f"parameters.{key}: must be numbers, texts, lists and dicts, got {type(value).__name__}"],
                hint="The function is sent as source: build other objects in it.",
            ) from None
    try:
        inspect.signature(function).bind(*([] if parameters is None else [parameters]))
    except TypeError as error:
        found = "none" if parameters is None else "a dict"
        raise ValidationError([f"parameters: {function.__name__} cannot be called with {found}: {error}"]) from None


def build_training_command(
    network: str | None,
    network_arguments: Mapping[str, Any] | None,
    script: str | Path | None,
    dataset: str | Path | None,
    output_dir: str | Path | None,
    parameters: Mapping[str, Any] | None,
) -> list[str]:
    """Return the command that trains a network or runs a script; the arguments are `MSJobClient.train`'s.

    Raises:
        UserError: Network and script are both given or both missing, or an argument is wrong.
    """
    if network is not None and script is not None:
        raise UserError("train: must have either network or script, got both")
    if script is not None:
        return build_script_command(str(script), parameters or {})
    if network is None:
        raise UserError("train: must have network ('module:factory') or script, got neither")
    command = build_network_command(network, network_arguments or {}, parameters or {})
    if dataset is None or output_dir is None:
        raise UserError(f"train: {'dataset' if dataset is None else 'output_dir'} is required with a network")
    return command


def build_directory_variables(
    dataset: str | Path | None,
    output_dir: str | Path | None,
    checkpoint_dir: str | Path | None,
    *,
    in_pods: bool,
) -> dict[str, str]:
    """Return the variables that name a training process's directories; checkpoints are in the output by default.

    Args:
        dataset: The dataset.
        output_dir: The output.
        checkpoint_dir: The checkpoints.
        in_pods: Whether paths are the pods' own, which are kept as given; this machine's paths become absolute.

    Raises:
        UserError: The output or the checkpoints are the dataset, or a file.
    """
    if output_dir is not None and checkpoint_dir is None:
        checkpoint_dir = f"{str(output_dir).rstrip('/')}/checkpoints"
    directories = {DATASET_VARIABLE: dataset, OUTPUT_VARIABLE: output_dir, CHECKPOINT_VARIABLE: checkpoint_dir}
    given = {name: path for name, path in directories.items() if path is not None}
    for path in () if in_pods else (output_dir, checkpoint_dir):
        if path is not None and "://" not in str(path):
            check_directory(Path(path), [dataset])
    return {name: str(path) if in_pods else files.resolve_location(path) for name, path in given.items()}


def build_network_command(network: str, arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Return the command that trains a network with `kfp_mindspore.training`.

    Args:
        network: `module:factory`.
        arguments: The factory's keyword arguments.
        parameters: Parameters in NETWORK_PARAMETERS.

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
            words += [flag, json.dumps(value) if isinstance(value, (Mapping, list, tuple)) else str(value)]
    return words


def get_script(argv: tuple[str, ...]) -> str | None:
    """Return the script that a Python command line runs; None for `-c`, `-m` and other programs."""
    if not argv or argv[0] != sys.executable:
        return None
    words = iter(argv[1:])
    for word in words:
        if word in ("-c", "-m", "-"):
            return None
        if word in _PYTHON_OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif not word.startswith("--") and word[-1] in "cm":
            # Combined flags, such as `-um package.module`.
            return None
    return None


def is_python_program(argv: Sequence[str]) -> bool:
    """Return whether a command line is a script or a module under this interpreter, without options but -u."""
    return bool(argv) and argv[0] == sys.executable and has_python_arguments(argv)


def has_python_arguments(argv: Sequence[str]) -> bool:
    """Return whether a Python command line runs a script or a module, without options but -u."""
    words = list(argv[1:])
    while words and words[0] == "-u":
        del words[0]
    return bool(words) and (not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1))
