"""Model and pipeline parallelism: MindSpore's semi-automatic and automatic modes, which need devices."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.environment import import_mindspore
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo


def build_context(config: TrainingConfig, worker: WorkerInfo) -> dict[str, Any]:
    """Return the arguments of mindspore.set_auto_parallel_context for a mode other than data_parallel.

    Each worker gets whole batches, which MindSpore divides together with the parameters.
    """
    return {
        "parallel_mode": config.parallel_mode,
        "device_num": worker.size,
        "global_rank": worker.rank,
        "gradients_mean": True,
        "dataset_strategy": "full_batch",
        **config.parallel_options,
    }


def set_context(config: TrainingConfig, worker: WorkerInfo) -> None:
    """Set MindSpore's context for a mode other than data_parallel.

    Raises:
        UserError: The device is a CPU, there is one worker only, or an option is unknown to MindSpore.
    """
    mindspore = import_mindspore()
    if mindspore.get_context("device_target") == "CPU":
        raise UserError(
            f"parallel_mode: {config.parallel_mode!r} needs Ascend or GPU devices: MindSpore 2.9 has no "
            "communication for it on CPU",
            hint="parallel_mode='data_parallel' runs on CPU; accumulate=… lowers its memory for activations.",
        )
    if worker.size == 1:
        raise UserError(f"parallel_mode: {config.parallel_mode!r} needs several workers, got 1")
    try:
        mindspore.set_auto_parallel_context(**build_context(config, worker))
    except (ValueError, TypeError) as error:
        raise UserError(f"parallel_options: {str(error).strip().splitlines()[0]}") from error
