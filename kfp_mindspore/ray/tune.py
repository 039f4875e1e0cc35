"""Ray Tune trainables from functions and commands that call `fit`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray.tune

from kfp_mindspore.ray.job import run_words
from kfp_mindspore.ray.session import use_tune_session
from kfp_mindspore.settings import HANG_EXIT_CODE


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
    build: Callable[[Mapping[str, Any]], Sequence[str]],
    variables: Mapping[str, str],
    timeout: int | None = None,
    expired: Path | None = None,
) -> Callable[[dict[str, Any]], None]:
    """Return a trainable that runs a script or module, such as a sweep's.

    Args:
        build: Returns the words for a trial's parameters: the script or `-m module`, and its arguments.
        variables: The trials' environment variables.
        timeout: Seconds after which a trial's process exits; None for no limit.
        expired: Directory, which all Ray nodes reach, for an empty file by the ID of each timed-out trial.
    """
    directory = str(Path.cwd())

    def train(config: dict[str, Any]) -> None:
        os.environ.update(variables)
        with _limit_seconds(timeout, expired):
            run_words(build(config), directory)

    return to_trainable(train)


@contextlib.contextmanager
def _limit_seconds(seconds: int | None, expired: Path | None) -> Iterator[None]:
    """Exit this process unless the block, which may hang outside Python, ends in time."""
    if seconds is None:
        yield
        return
    name = ray.tune.get_context().get_trial_id()

    def end() -> None:
        print(f"trial {name} ran longer than {seconds} s: ending it", file=sys.stderr, flush=True)
        if expired is not None:
            expired.mkdir(parents=True, exist_ok=True)
            (expired / name).touch()
        os._exit(HANG_EXIT_CODE)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
