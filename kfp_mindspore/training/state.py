"""Parameters, optimizer state and random numbers in a checkpoint."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.formats.checkpoint import NETWORK_FILE, OPTIMIZER_FILE, Checkpoint, NetworkSpec
from kfp_mindspore.training.dropout import COUNTER_PREFIX

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def describe_network(network: Any, factory: str | None, arguments: Mapping[str, Any] | None) -> NetworkSpec:
    """Return how to build the network; the default factory is its class, if that can be imported by name.

    Raises:
        UserError: The factory is not `module:name`, or the arguments are not JSON.
    """
    if factory is None:
        kind = type(network)
        module = kind.__module__
        if module == "__main__":
            specification = getattr(sys.modules["__main__"], "__spec__", None)
            module = specification.name if specification is not None else ""
        factory = f"{module}:{kind.__qualname__}" if module and "<locals>" not in kind.__qualname__ else ""
    elif not _FACTORY.fullmatch(factory):
        raise UserError(f"network_factory: must be 'module:name', got {factory!r}")
    try:
        plain = json.loads(json.dumps(dict(arguments or {})))
    except (TypeError, ValueError) as error:
        raise UserError(f"network_arguments: must be JSON types ({error})") from None
    return NetworkSpec(factory, plain)


def copy_parameters(network: Any, optimizer: Any, further: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    """Copy the parameters to host memory.

    Args:
        network: The network.
        optimizer: The optimizer.
        further: Other parameters that are trained or updated.

    Returns:
        The arguments of `mindspore.save_checkpoint` for network.ckpt and optimizer.ckpt, by file name.
    """
    own, state = _split_parameters(network, optimizer)
    return {NETWORK_FILE: _copy(own), OPTIMIZER_FILE: _copy([*state, *further])}


def read_random_state() -> str:
    """Return the state of the generators of Python, NumPy and MindSpore as JSON."""
    generator: Any = np.random.get_state()
    name, key, *rest = generator
    return json.dumps(
        {
            "python": random.getstate(),
            "numpy": [name, key.tolist(), *rest],
            "mindspore": mindspore.get_rng_state().asnumpy().tolist(),
        }
    )


def restore_random_state(text: str) -> None:
    """Restore `read_random_state`."""
    state = json.loads(text)
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.asarray(key, np.uint32), *rest))
    mindspore.set_rng_state(Tensor(np.asarray(state["mindspore"], np.uint8)))


def load_parameters(checkpoint: Checkpoint, network: Any, optimizer: Any, further: Sequence[Any]) -> None:
    """Load a checkpoint's parameters, optimizer state and `further` parameters.

    Raises:
        UserError: A parameter is missing or has another shape, as in the checkpoint of another network or optimizer.
        CorruptBundleError: A file is no MindSpore checkpoint.
    """
    own, state = _split_parameters(network, optimizer)
    _load(own, checkpoint.network_file)
    _load([*state, *further], checkpoint.optimizer_file)


def _split_parameters(network: Any, optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Return the network's parameters and the optimizer's own."""
    own = list(network.get_parameters())
    known = {id(parameter) for parameter in own}
    return own, [parameter for parameter in optimizer.get_parameters() if id(parameter) not in known]


def _copy(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": parameter.name, "data": Tensor(parameter.asnumpy().copy())} for parameter in parameters]


def _load(parameters: list[Any], path: Path) -> None:
    try:
        loaded = mindspore.load_checkpoint(str(path))
    except (ValueError, TypeError, RuntimeError) as error:
        raise CorruptBundleError(f"{path}: MindSpore cannot read it ({str(error).splitlines()[0]})") from error
    hint = "Resume needs the same network and optimizer; use another checkpoint directory for a new run."
    # Checkpoints of earlier versions have no counters of Dropout.
    parameters = [item for item in parameters if item.name in loaded or not item.name.startswith(COUNTER_PREFIX)]
    for parameter in parameters:
        if parameter.name not in loaded:
            raise UserError(f"{path}: has no parameter {parameter.name!r}", hint=hint)
        if tuple(loaded[parameter.name].shape) != tuple(parameter.shape):
            raise UserError(
                f"{path}: {parameter.name!r} has shape {tuple(loaded[parameter.name].shape)}, "
                f"the network's has {tuple(parameter.shape)}",
                hint=hint,
            )
    for parameter in parameters:
        parameter.set_data(loaded[parameter.name])
