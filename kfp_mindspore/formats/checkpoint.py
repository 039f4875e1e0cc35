"""The checkpoint directory: written atomically, listed newest first, checked by digests.

<root>/<epochs done, 5 digits>-<steps done>/    or a directory with any other name for a final one
    network.ckpt      the network's parameters, or network.packed.npz (`formats.packed`) in a compressed checkpoint
    optimizer.ckpt    the optimizer's parameters (moments, learning rate, global step)
    …                 further training state, such as weights kept by a callback
    checkpoint.json   epoch, step, seed, network {factory, arguments, cut}, preprocessing (the dataset declaration
                      that the network was trained on), metrics, training, files {name: {sha256, size}},
                      mindspore_version
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.manifest import check_files, describe_files, naming_fields, parse_entries
from kfp_mindspore.formats.packed import PACKED_FILE
from kfp_mindspore.outputs import OutputKind

DESCRIPTION = "checkpoint.json"
NETWORK_FILE = "network.ckpt"
OPTIMIZER_FILE = "optimizer.ckpt"
# A checkpoint directory as an output; training replaces a damaged one.
OUTPUT = OutputKind(DESCRIPTION, listing="files", names=(NETWORK_FILE, OPTIMIZER_FILE), replaces_damaged=True)

_NAME = re.compile(r"(\d{5,})-(\d+)")
_LEFTOVER = re.compile(r"\.(\d{5,}-\d+)\..*\.(tmp|old)")
_logger = logging.getLogger(__name__)
HINT = "Name a checkpoint's directory: training writes OUTPUT_DIR/checkpoint, or CHECKPOINT_DIR/EPOCHS-STEPS."
# Checkpoints name the module of their network.
_MOVED_MODULES = {"kfp_mindspore.digits.network": "kfp_mindspore.workloads.digits.network"}


@dataclass(frozen=True)
class NetworkSpec:
    """How to build a network.

    Args:
        factory: `module:callable` that returns the network; empty when it cannot be imported.
        arguments: The callable's keyword arguments, JSON types only.
        cut: Widths of a compressed network, see `mindir.parameters.widths`; empty for those that the factory builds.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cut: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON types."""
        described = {"factory": self.factory, "arguments": dict(self.arguments)}
        return {**described, "cut": dict(self.cut)} if self.cut else described


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory whose description was read.

    Args:
        path: The directory.
        epoch: Epochs completed.
        step: Optimizer steps done since the start; within an epoch when it is no multiple of the epoch's steps.
        seed: Run seed.
        network: How to build the network.
        metrics: Newest metrics by name, such as {"loss": 0.1, "accuracy": 0.97}.
        training: Further state for resuming: epochs, steps per epoch, batch size, workers, position, callbacks.
        files: Name to {"sha256": …, "size": bytes}.
        mindspore_version: The version that wrote it.
        preprocessing: Step declaration from raw columns to the network's inputs
            (`kfp_mindspore.transform.declaration.declare`); empty when not known.
    """

    path: Path
    epoch: int
    step: int
    seed: int
    network: NetworkSpec
    metrics: Mapping[str, float]
    training: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    mindspore_version: str
    preprocessing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def network_file(self) -> Path:
        """The network's parameters, for `mindspore.load_checkpoint`; packed ones are read by `formats.packed`."""
        return self.path / (PACKED_FILE if PACKED_FILE in self.files else NETWORK_FILE)

    @property
    def optimizer_file(self) -> Path:
        """The optimizer's parameters, for `mindspore.load_checkpoint`."""
        return self.path / OPTIMIZER_FILE

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> Checkpoint:
        """Read a checkpoint's description and check its files.

        Args:
            path: The checkpoint directory.
            verify: Also compare the files' digests, not only their presence and size.

        Raises:
            NotFoundError: There is no such directory, or it holds no checkpoint.json.
            UserError: The description is incomplete, or a file is missing; the message names it.
            CorruptBundleError: A file has another size or digest than described; the message names it.
        """
        path = Path(path)
        if not path.is_dir():
            raise NotFoundError(f"{path}: no such checkpoint directory", hint=HINT)
        if not (path / DESCRIPTION).is_file():
            raise NotFoundError(f"{path}: {DESCRIPTION} is missing, so this is no checkpoint", hint=HINT)
        checkpoint = cls.read_description(path)
        check_files(path, checkpoint.files, DESCRIPTION, digests=verify)
        return checkpoint

    @classmethod
    def read_description(cls, path: Path) -> Checkpoint:
        """Read a checkpoint's description without its files.

        Args:
            path: Directory with checkpoint.json.

        Raises:
            UserError: The description is missing or incomplete.
        """
        return _parse_description(path, files.read_json(path / DESCRIPTION))


def name_checkpoint(epoch: int, step: int) -> str:
    """Return a checkpoint's directory name, `<epochs done, 5 digits>-<steps done>`."""
    return f"{epoch:05d}-{step}"


@contextlib.contextmanager
def write_checkpoint(
    path: Path | str,
    *,
    epoch: int,
    step: int,
    seed: int,
    network: NetworkSpec,
    metrics: Mapping[str, float] | None = None,
    training: Mapping[str, Any] | None = None,
    mindspore_version: str = "",
    preprocessing: Mapping[str, Any] | None = None,
) -> Iterator[Path]:
    """Yield an empty directory to write the files into; when the block succeeds it becomes the checkpoint `path`.

    The files get mode 0644 (MindSpore's are 0400), reach the disk and are digested before the directory appears under
    its name. When the block or the writing fails, its files are removed and an existing
    checkpoint at `path` is unchanged.

    Args:
        path: The checkpoint directory, such as `root / name_checkpoint(epoch, step)`; replaced when it exists.
        epoch: Epochs completed.
        step: Optimizer steps done.
        seed: Run seed.
        network: How to build the network.
        metrics: Newest metrics by name.
        training: Further state for resuming, JSON types only; read when the block ends.
        mindspore_version: The version that writes it.
        preprocessing: The dataset's preprocessing declaration, `Dataset.preprocessing`.

    Raises:
        UserError: The disk is full or the directory cannot be written; the message names it.
    """
    path = Path(path)
    try:
        with files.replace_directory(path, OUTPUT) as directory:
            yield directory
            described = describe_files(directory)
            for name in described:
                _fsync(directory / name)
            description = {
                "epoch": epoch,
                "step": step,
                "seed": seed,
                "network": network.to_dict(),
                "preprocessing": dict(preprocessing or {}),
                "metrics": dict(metrics or {}),
                "training": dict(training or {}),
                "files": described,
                "mindspore_version": mindspore_version,
            }
            files.write_json(directory / DESCRIPTION, description)
    except OSError as error:
        raise UserError(
            f"{path}: the checkpoint cannot be written ({error.strerror or error})",
            hint="Earlier checkpoints are untouched. Free some space or choose another directory.",
        ) from error
    _fsync(path.parent)


def list_checkpoints(root: Path | str) -> list[Path]:
    """Return the directories below `root` with checkpoint names, newest first; they may be broken."""
    root = Path(root)
    if not root.is_dir():
        return []
    found = [(match, path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    found.sort(key=lambda pair: (int(pair[0][1]), int(pair[0][2])), reverse=True)
    return [path for _, path in found]


def get_latest_checkpoint(root: Path | str) -> Checkpoint | None:
    """Return the newest intact checkpoint below `root`, or None; a broken one is skipped with a warning."""
    for path in list_checkpoints(root):
        try:
            return Checkpoint.open(path)
        except UserError as error:
            _logger.warning("skipping a broken checkpoint: %s", error.message)
    return None


def prune_checkpoints(root: Path | str, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints below `root`."""
    for path in list_checkpoints(root)[max(keep, 1) :]:
        shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(root: Path | str) -> None:
    """Remove killed writers' temporary directories below `root`; no writer may be running there."""
    root = Path(root)
    if not root.is_dir():
        return
    for path in list(root.iterdir()):
        if _LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _resolve_factory(factory: str) -> str:
    """Return where a stored factory is today."""
    module, separator, name = factory.partition(":")
    return f"{_MOVED_MODULES.get(module, module)}{separator}{name}"


def _parse_description(path: Path, raw: Any) -> Checkpoint:
    with naming_fields(path / DESCRIPTION, "a checkpoint's description"):
        return Checkpoint(
            path=path,
            epoch=int(raw["epoch"]),
            step=int(raw["step"]),
            seed=int(raw["seed"]),
            network=NetworkSpec(
                _resolve_factory(str(raw["network"]["factory"])),
                dict(raw["network"]["arguments"]),
                dict(raw["network"].get("cut", {})),
            ),
            metrics={str(name): float(value) for name, value in raw["metrics"].items()},
            training=dict(raw.get("training", {})),
            files=parse_entries(raw["files"]),
            mindspore_version=str(raw["mindspore_version"]),
            preprocessing=dict(raw.get("preprocessing", {})),
        )


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
