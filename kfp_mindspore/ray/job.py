"""Runs a script that calls `fit` in Ray's workers: a RayJob's entry point, and the component `ray_job` on one machine.

Example:
    python -m kfp_mindspore.ray.job --workers 2 -- train.py --epochs 5
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.ray.version import check_ray
from kfp_mindspore.settings import CHECKPOINT_VARIABLE


def run_script(
    words: Sequence[str],
    *,
    workers: int = 1,
    min_workers: int = 0,
    max_failures: int = 0,
    storage_path: str = "",
    name: str = "training",
    resources_per_worker: dict[str, float] | None = None,
) -> Any:
    """Train by a script on the Ray in RAY_ADDRESS, or on one started for this process; return Ray's result.

    A second call with the same name and storage path resumes from the last report.

    Args:
        words: Script or `-m module`, and its arguments.
        workers: Worker count.
        min_workers: Fewest workers to train with while Ray has not more; 0 for `workers`.
        max_failures: Failures after which training resumes.
        storage_path: Ray's directory or URI for checkpoints, which all nodes reach; empty for
            KFP_MINDSPORE_CHECKPOINT_DIR.
        name: The run's name below the storage path.
        resources_per_worker: Ray's resources; default one CPU.

    Raises:
        UserError: Ray is missing or another release, or the words name no script.
        KfpMindSporeError: The training has failed.
    """
    check_ray()
    if not words:
        raise UserError("command: must name a script or -m module, got nothing")
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError

    from kfp_mindspore.ray.train import MindSporeTrainer

    least = min_workers or workers
    trainer = MindSporeTrainer(
        _train,
        train_loop_config={"words": list(words), "directory": str(Path.cwd())},
        scaling_config=ScalingConfig(
            num_workers=workers if least == workers else (least, workers), resources_per_worker=resources_per_worker
        ),
        run_config=RunConfig(
            name=name,
            storage_path=storage_path or os.environ.get(CHECKPOINT_VARIABLE) or None,
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )
    own = not ray.is_initialized()
    if own:
        connect()
    try:
        return trainer.fit()
    except TrainingFailedError as error:
        raise KfpMindSporeError(f"the training on Ray has failed: {error}") from error
    finally:
        if own:
            ray.shutdown()


def connect(*, log_to_driver: bool = True) -> None:
    """Connect to the Ray in RAY_ADDRESS, which its jobs have, or start one: `ray.init` alone joins a stranger's.

    Args:
        log_to_driver: Whether the workers' output is printed here.
    """
    import ray

    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=log_to_driver)
    else:
        ray.init(address="local", include_dashboard=False, log_to_driver=log_to_driver)


def _train(config: dict[str, Any]) -> None:
    run_words(config["words"], config["directory"])


def run_words(words: Sequence[str], directory: str) -> None:
    """Run a script or module in this process as Python runs it.

    Args:
        words: The script or `-m module`, and its arguments.
        directory: Where it runs: Ray's working directory is another one.
    """
    os.chdir(directory)
    is_module = words[0] == "-m"
    sys.argv = list(words[1:] if is_module else words)
    sys.path.insert(0, directory if is_module else str(Path(words[0]).resolve().parent))
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        # `sys.exit(main())` ends a script; in Ray it would end the worker.
        if end.code:
            raise KfpMindSporeError(f"{' '.join(words)}: ended with exit code {end.code}") from end


def parse_arguments(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the command line's options: arguments of `run_script`."""
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.ray.job", description="Train by a script on Ray.")
    parser.add_argument("--name", default="training", help="of the run below the storage path")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--min-workers", type=int, default=0, help="fewest workers to train with; default: --workers")
    parser.add_argument("--max-failures", type=int, default=0, help="failures after which training resumes")
    parser.add_argument("--storage-path", default="", help=f"default: {CHECKPOINT_VARIABLE}")
    parser.add_argument("words", nargs="+", help="script or -m module, and its arguments, behind --")
    return vars(parser.parse_args(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, train and return the exit code."""
    options = parse_arguments(argv)
    try:
        run_script(options.pop("words"), **options)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
