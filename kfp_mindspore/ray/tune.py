"""Trainables of Ray Tune from functions and commands that call `fit`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.ray.job import run_words
from kfp_mindspore.ray.session import use_tune_session


def to_trainable(function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    """Return a trainable for `ray.tune.Tuner` from a function that calls `fit`.

    `fit` reports each checkpoint with its metrics, `epoch` and `step`, so that schedulers stop, pause, clone and resume
    trials: use `time_attr="epoch"`. A trial is one process.

    Args:
        function: Function with the trial's parameters.
    """

    @functools.wraps(function)
    def train(config: dict[str, Any]) -> None:
        with use_tune_session():
            function(config)

    return train


def to_command_trainable(
    build: Callable[[Mapping[str, Any]], Sequence[str]], variables: Mapping[str, str]
) -> Callable[[dict[str, Any]], None]:
    """Return a trainable that runs a script or module, such as a sweep's.

    Args:
        build: Returns the words for a trial's parameters: the script or `-m module`, and its arguments.
        variables: Environment variables of the trials.
    """
    directory = str(Path.cwd())

    def train(config: dict[str, Any]) -> None:
        os.environ.update(variables)
        run_words(build(config), directory)

    return to_trainable(train)
