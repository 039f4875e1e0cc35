"""Runs a script that calls `fit` in Ray's workers: a RayJob's entry point, and the component `ray_job` on one machine.

Example:
    python -m kfp_mindspore.ray.job --workers 2 -- train.py --epochs 5
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.ray.handover import Handover
from kfp_mindspore.ray.version import check_ray
from kfp_mindspore.settings import CHECKPOINT_VARIABLE
from kfp_mindspore.stores.artifact_store import ArtifactStore


def run_script(
    words: Sequence[str],
    *,
    workers: int = 1,
    min_workers: int = 0,
    max_failures: int = 0,
    storage_path: str = "",
    name: str = "training",
    resources_per_worker: dict[str, float] | None = None,
    handover: Handover | None = None,
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Train by a script on the Ray in RAY_ADDRESS, or on one started for this process; return Ray's result.

    A second call with the same name and storage path resumes from the last report.

    Args:
        words: Script or `-m module`, and its arguments.
        workers: Worker count.
        min_workers: Fewest workers to train with while Ray has not more; 0 for `workers`.
        max_failures: Failures after which training resumes.
        storage_path: Ray's directory or URI for checkpoints, which all nodes reach; empty for the handover's, or
            KFP_MINDSPORE_CHECKPOINT_DIR.
        name: The run's name below the storage path.
        resources_per_worker: Ray's resources; default one CPU.
        handover: Artifacts that the workers download and upload.
        variables: The workers' environment variables, which a Ray in RAY_ADDRESS does not have.

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

    handover = handover or Handover()
    least = min_workers or workers
    storage_path, filesystem = storage_path or os.environ.get(CHECKPOINT_VARIABLE, ""), None
    if handover.checkpoints:
        from kfp_mindspore.ray.files import open_filesystem

        filesystem, storage_path = open_filesystem(ArtifactStore.from_environment(os.environ), handover.checkpoints)
    trainer = MindSporeTrainer(
        _train,
        train_loop_config={"words": list(words), "directory": str(Path.cwd()), "handover": handover},
        scaling_config=ScalingConfig(
            num_workers=workers if least == workers else (least, workers), resources_per_worker=resources_per_worker
        ),
        run_config=RunConfig(
            name=name,
            storage_path=storage_path or None,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )
    own = connect(variables=variables)
    try:
        result = trainer.fit()
        handover.delete_checkpoints()
        return result
    except TrainingFailedError as error:
        raise KfpMindSporeError(f"the training on Ray has failed: {error}") from error
    finally:
        if own:
            ray.shutdown()


def connect(*, log_to_driver: bool = True, variables: Mapping[str, str] | None = None) -> bool:
    """Connect to the Ray in RAY_ADDRESS, which its jobs have, or start one, unless Ray is initialised.

    Ray's own `ray.init()` would also join a Ray that another user has started on this machine.

    Args:
        log_to_driver: Whether the workers' output is printed here.
        variables: The workers' environment variables.

    Returns:
        Whether this call has connected.
    """
    import ray

    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": log_to_driver}
    if variables:
        options["runtime_env"] = {"env_vars": dict(variables)}
    if not os.environ.get("RAY_ADDRESS"):
        options |= {"address": "local", "include_dashboard": False}
    ray.init(**options)
    return True


def _train(config: dict[str, Any]) -> None:
    from ray.train import get_context

    context = get_context()
    with config["handover"].use(context.get_world_rank(), context.get_local_rank()):
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
    """Return the command line's options: `run_script`'s arguments."""
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.ray.job", description="Train by a script on Ray.")
    parser.add_argument("--name", default="training", help="of the run below the storage path")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--min-workers", type=int, default=0, help="fewest workers to train with; default: --workers")
    parser.add_argument("--max-failures", type=int, default=0, help="failures after which training resumes")
    parser.add_argument("--storage-path", default="", help=f"default: {CHECKPOINT_VARIABLE}")
    # Those of `kfp_mindspore.podside.artifacts`.
    parser.add_argument("--download", nargs=2, action="append", default=[], metavar=("URI", "PATH"), help="each node's")
    parser.add_argument("--upload", nargs=2, action="append", default=[], metavar=("PATH", "URI"), help="rank 0's")
    parser.add_argument("--mkdir", action="append", default=[], metavar="PATH", help="a directory for the command")
    parser.add_argument("--checkpoints", nargs=2, default=("", ""), metavar=("PATH", "URI"), help="the URI is Ray's")
    parser.add_argument("--keep-checkpoints", action="store_true", help="do not delete them after a success")
    parser.add_argument("words", nargs="+", help="script or -m module, and its arguments, behind --")
    options = vars(parser.parse_args(argv))
    *_, options["checkpoints"] = options["checkpoints"]
    given = {field.name: options.pop(field.name) for field in dataclasses.fields(Handover)}
    return {**options, "handover": Handover(**given)}


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
