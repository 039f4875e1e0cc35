"""Model and pipeline parallelism: MindSpore's semi-automatic and automatic modes, which need devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import NetworkSpec
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir.environment import import_mindspore
from kfp_mindspore.mindir.parameters.shards import STRATEGY_DIR, write_description
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo

if TYPE_CHECKING:
    from kfp_mindspore.training.samples.data import Source


def build_context(config: TrainingConfig, worker: WorkerInfo) -> dict[str, Any]:
    """Return the mindspore.set_auto_parallel_context arguments for a mode other than data_parallel.

    Each worker gets whole batches, which MindSpore divides together with the parameters, and saves its pipeline stage's
    strategy in the checkpoint directory.
    """
    options: dict[str, Any] = {}
    if config.checkpoint_dir is not None:
        # By default MindSpore saves trained parameters' layouts only; export needs BatchNorm's statistics too.
        file = Path(config.checkpoint_dir) / STRATEGY_DIR / f"rank_{worker.rank}.ckpt"
        options["strategy_ckpt_config"] = {"save_file": str(file), "only_trainable_params": False}
    return {
        "parallel_mode": config.parallel_mode,
        "device_num": worker.size,
        "global_rank": worker.rank,
        "gradients_mean": True,
        "dataset_strategy": "full_batch",
        **options,
        **config.parallel_options,
    }


def set_context(config: TrainingConfig, worker: WorkerInfo) -> None:
    """Set MindSpore's context for a mode other than data_parallel.

    Raises:
        UserError: The device is a CPU, there is one worker only, the checkpoint directory is a URI, or an option is
            unknown to MindSpore.
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
    if "://" in str(config.checkpoint_dir or ""):
        raise UserError(
            f"checkpoint_dir: {config.parallel_mode} needs a directory that all workers share, "
            f"got {config.checkpoint_dir}"
        )
    try:
        mindspore.set_auto_parallel_context(**build_context(config, worker))
    except (ValueError, TypeError) as error:
        raise UserError(f"parallel_options: {str(error).strip().splitlines()[0]}") from error


def build_saver(config: TrainingConfig, worker: WorkerInfo, network: NetworkSpec, source: Source) -> Any:
    """Return MindSpore's callback that saves a worker's slices in `rank_<N>/` in the checkpoint directory.

    Rank 0 writes the description that export reads.

    Args:
        config: The options; `checkpoint_epochs`, `checkpoint_steps` and `keep_checkpoints` apply.
        worker: This worker.
        network: How export builds the network.
        source: The training samples.
    """
    from mindspore.train import CheckpointConfig, ModelCheckpoint

    directory = Path(str(config.checkpoint_dir))
    saver = ModelCheckpoint(
        prefix="network",
        directory=str(directory / f"rank_{worker.rank}"),
        config=CheckpointConfig(
            save_checkpoint_steps=config.checkpoint_steps or config.checkpoint_epochs * source.steps,
            keep_checkpoint_max=config.keep_checkpoints,
            integrated_save=False,
        ),
    )
    if worker.is_writer:
        preprocessing = source.raw.preprocessing if isinstance(source.raw, Dataset) else {}
        write_description(
            directory, network=network, preprocessing=preprocessing, seed=config.seed, steps_per_epoch=source.steps
        )
    return saver
