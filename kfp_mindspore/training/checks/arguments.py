"""Checks on `fit` arguments: mistakes that would train nothing, reported before anything is compiled."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mindspore
from mindspore import nn

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir.devices import has_bfloat16
from kfp_mindspore.training.config import TrainingConfig

_logger = logging.getLogger(__name__)


def check_objects(network: Any, loss: Any, optimizer: Any, config: Any) -> None:
    """Check that the arguments are the right kinds, and that the optimizer updates the network.

    Raises:
        UserError: One is a class or has the wrong type, or the optimizer has another network's parameters.
    """
    for field, given, kind in (("network", network, nn.Cell), ("optimizer", optimizer, nn.Optimizer)):
        if isinstance(given, type):
            arguments = "network.trainable_params(), 1e-3" if field == "optimizer" else "…"
            raise UserError(
                f"{field}: must be an object, got the class {given.__name__}",
                hint=f"Write {given.__name__}({arguments}).",
            )
        if not isinstance(given, kind):
            raise UserError(f"{field}: must be a mindspore.nn.{kind.__name__}, got {type(given).__name__}")
    if not isinstance(config, TrainingConfig):
        raise UserError(f"config: must be a TrainingConfig, got {type(config).__name__}")
    losses = loss.values() if isinstance(loss, Mapping) else (loss,)
    cells = [network, *(item for item in losses if isinstance(item, nn.Cell))]
    known = {id(parameter) for cell in cells for parameter in cell.get_parameters()}
    foreign = [parameter.name for parameter in optimizer.parameters if id(parameter) not in known]
    if foreign:
        raise UserError(
            f"optimizer: {foreign[0]!r} is no parameter of the network ({len(foreign)} of "
            f"{len(optimizer.parameters)} are not), so training would not change it",
            hint="Build the optimizer over network.trainable_params() of the same object that is trained.",
        )


def check_returned_loss(loss: Any, network: Any, data: Any) -> None:
    """Check that a network without a loss function returns a loss; others would be trained on the summed outputs.

    Args:
        loss: A step's first output.
        network: The network, for the message.
        data: The training data as given.

    Raises:
        UserError: The output is not one number.
    """
    if loss.size == 1:
        return
    hint = "Give a loss function, such as loss=nn.CrossEntropyLoss()."
    if isinstance(data, Dataset) and not data.list_columns("target"):
        hint = f"{data.path} has no target: load it again with --target NAME, or target=…."
    shape = tuple(loss.shape)
    raise UserError(f"loss: not given, so {type(network).__name__} must return one number, got {shape}", hint=hint)


def apply_precision(network: Any, precision: str) -> Any:
    """Return the network in mixed precision, with the same parameters in float32.

    Raises:
        UserError: The device does not compute in it, or MindSpore cannot convert the network.
    """
    if precision == "float32":
        return network
    device = mindspore.get_context("device_target")
    if precision == "bfloat16" and not has_bfloat16():
        raise UserError(f"precision: MindSpore has no bfloat16 on {device}", hint="Use float32.")
    if device == "CPU":
        _logger.warning("precision: float16 is emulated on CPU, and slower than float32 (2 to 12 times)")
    try:
        with _scratch_working_directory():
            return mindspore.amp.auto_mixed_precision(network, "O1", getattr(mindspore, precision))
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"precision: {type(network).__name__} cannot be converted to {precision}: {reason}") from error


@contextlib.contextmanager
def _scratch_working_directory() -> Iterator[None]:
    """Run the block in a directory that is removed at exit.

    MindSpore 2.9 writes the converted network's source to `rewritten_network` in the working directory, and reads it
    again when the network is compiled.
    """
    before = Path.cwd()
    directory = tempfile.mkdtemp(prefix="kfp-mindspore-precision-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
