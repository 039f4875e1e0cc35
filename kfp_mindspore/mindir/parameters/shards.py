"""Sharded checkpoints from model and pipeline parallelism, merged by MindSpore into one file.

<directory>/
    sharded.json                    network, preprocessing, seed, steps per epoch; optional
    strategy/*.ckpt                 MindSpore's strategy files, of all pipeline stages
    rank_<N>/*-<epoch>_<step>.ckpt  the slices of rank N, as ModelCheckpoint names them
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.checkpoint import NETWORK_FILE, Checkpoint, NetworkSpec
from kfp_mindspore.formats.manifest import naming_fields
from kfp_mindspore.mindir.environment import import_mindspore

DESCRIPTION = "sharded.json"
STRATEGY_DIR = "strategy"

_RANK = re.compile(r"rank_(\d+)")
# MindSpore appends _<N> to the N-th run's prefix when it writes to the same directory.
_STEP = re.compile(r".*?(?:_(\d+))?-(\d+)_(\d+)\.ckpt")


def is_sharded(directory: Path | str) -> bool:
    """Return whether a directory holds `sharded.json` or directories `rank_<N>`."""
    directory = Path(directory)
    return (directory / DESCRIPTION).is_file() or any(_RANK.fullmatch(path.name) for path in directory.glob("rank_*"))


def write_description(
    directory: Path | str, *, network: NetworkSpec, preprocessing: Mapping[str, Any], seed: int, steps_per_epoch: int
) -> None:
    """Write `sharded.json`.

    Args:
        directory: Shard directory.
        network: How to build the network.
        preprocessing: The dataset's preprocessing declaration.
        seed: Run seed.
        steps_per_epoch: Optimizer steps in an epoch.
    """
    description = {
        "network": {"factory": network.factory, "arguments": dict(network.arguments)},
        "preprocessing": dict(preprocessing),
        "seed": seed,
        "steps_per_epoch": steps_per_epoch,
    }
    files.write_json(Path(directory) / DESCRIPTION, description)


def open_sharded(directory: Path | str) -> Checkpoint:
    """Describe the newest sharded checkpoint that all ranks in a directory hold.

    Raises:
        UserError: A rank holds no checkpoint, or the ranks hold none from the same step.
    """
    directory = Path(directory)
    (_, epoch, step), _ = _select_shards(directory)
    raw: Any = {"network": {"factory": "", "arguments": {}}, "preprocessing": {}, "seed": 0, "steps_per_epoch": 0}
    if (directory / DESCRIPTION).is_file():
        raw = files.read_json(directory / DESCRIPTION)
    with naming_fields(directory / DESCRIPTION, "a sharded checkpoint's description"):
        return Checkpoint(
            path=directory,
            epoch=epoch,
            step=max(epoch - 1, 0) * int(raw["steps_per_epoch"]) + step,
            seed=int(raw["seed"]),
            network=NetworkSpec(str(raw["network"]["factory"]), dict(raw["network"]["arguments"])),
            metrics={},
            training={},
            files={},
            mindspore_version=import_mindspore().__version__,
            preprocessing=dict(raw["preprocessing"]),
        )


def merge_shards(directory: Path | str, output_dir: Path, strategy: Path | str | None = None) -> Path:
    """Merge all ranks' slices into one checkpoint file; parameters without a layout are skipped.

    Args:
        directory: Shard directory.
        output_dir: An existing directory for the file.
        strategy: Strategy file, or a directory with all pipeline stages' files; `strategy/` in the directory by
            default. With `only_trainable_params` False they contain layouts for untrained parameters too.

    Returns:
        `output_dir/network.ckpt`, with the whole parameters.

    Raises:
        NotFoundError: The strategy files are missing.
        UserError: A rank is missing, or the slices and the strategy do not fit together.
    """
    directory = Path(directory)
    import_mindspore()
    from mindspore.parallel import rank_list_for_transform, transform_checkpoint_by_rank

    strategy = Path(strategy or directory / STRATEGY_DIR)
    _, shards = _select_shards(directory)
    merged = output_dir / NETWORK_FILE
    try:
        layouts = str(_merge_strategies(strategy, output_dir))
        ranks = sorted(rank_list_for_transform(0, layouts))
        if missing := [rank for rank in ranks if rank not in shards]:
            names = ", ".join(f"rank_{rank}" for rank in missing)
            raise UserError(
                f"{directory}: {names} missing: the strategy {strategy} divides the parameters over "
                f"{len(ranks)} ranks, got {len(shards)}",
                hint=f"Copy the checkpoints of all ranks to {directory}/rank_<N>.",
            )
        transform_checkpoint_by_rank(0, {rank: str(shards[rank]) for rank in ranks}, str(merged), layouts)
    except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        # MindSpore 2.9 validates neither the slices nor the layouts: what fails differs.
        reason = next((line for line in str(error).splitlines() if line.strip()), "no message")
        raise UserError(
            f"{directory}: its slices do not fit the strategy {strategy} ({type(error).__name__}: {reason})",
            hint="Name the strategy files of the run that wrote the slices.",
        ) from error
    return merged


def _merge_strategies(strategy: Path, output_dir: Path) -> Path:
    """Return one strategy file: the file itself, or a directory's files merged by pipeline stage."""
    from mindspore.parallel import merge_pipeline_strategys

    found = sorted(strategy.glob("*.ckpt")) if strategy.is_dir() else [strategy] if strategy.is_file() else []
    if not found:
        raise NotFoundError(
            f"{strategy}: no strategy file, which says how a sharded checkpoint is divided",
            hint="MindSpore saves it by strategy_ckpt_config={'save_file': …}; name it by --strategy, strategy=….",
        )
    if len(found) == 1:
        return found[0]
    merged = output_dir / "strategy.ckpt"
    merge_pipeline_strategys(str(strategy), str(merged))
    return merged


def _select_shards(directory: Path) -> tuple[tuple[int, int, int], dict[int, Path]]:
    """Return the newest (run, epoch, step in the epoch) that all ranks hold, and the files by rank."""
    found: dict[int, dict[tuple[int, int, int], Path]] = {}
    for path in directory.glob("rank_*"):
        if (rank := _RANK.fullmatch(path.name)) and path.is_dir():
            found[int(rank[1])] = {_parse_step(file.name): file for file in sorted(path.glob("*.ckpt"))}
    if not found:
        raise UserError(f"{directory}: rank_0 is missing: no rank has saved a checkpoint")
    if empty := [rank for rank, steps in sorted(found.items()) if not steps]:
        raise UserError(f"{directory}/rank_{empty[0]}: holds no .ckpt file")
    common = set.intersection(*(set(steps) for steps in found.values()))
    if common:
        return max(common), {rank: steps[max(common)] for rank, steps in found.items()}
    if all(len(steps) == 1 for steps in found.values()):
        # One file per rank by any name, such as one with the rank in its prefix.
        newest = max(step for steps in found.values() for step in steps)
        if len({step[1:] for steps in found.values() for step in steps}) == 1:
            return newest, {rank: next(iter(steps.values())) for rank, steps in found.items()}
    raise UserError(
        f"{directory}: its {len(found)} ranks hold no checkpoint of the same epoch and step",
        hint="Checkpoints are named PREFIX-EPOCH_STEP.ckpt.",
    )


def _parse_step(name: str) -> tuple[int, int, int]:
    match = _STEP.fullmatch(name)
    return (int(match[1] or 0), int(match[2]), int(match[3])) if match else (0, 0, 0)
