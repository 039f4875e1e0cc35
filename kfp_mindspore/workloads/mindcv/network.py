"""mindcv's networks by name, built by `train.py` and by the export step."""

import difflib
from typing import Any

from kfp_mindspore.errors import MissingExtraError, UserError
from mindspore import nn


def build_network(name: str, classes: int, channels: int = 3, **options: Any) -> nn.Cell:
    """Return a network with random weights.

    Its parameters have mindcv's names, so that mindcv's checkpoints fit.

    Args:
        name: Network name, such as `resnet18`; `mindcv.list_models()` lists all.
        classes: Class count.
        channels: Channels per image.
        **options: Further arguments of mindcv's function, such as image_size; each network has its own.

    Raises:
        MissingExtraError: mindcv is not installed.
        UserError: mindcv has no such network, or it takes other arguments.
    """
    try:
        import mindcv
    except ModuleNotFoundError as error:
        if error.name != "mindcv":
            raise
        raise MissingExtraError("mindcv", "mindcv") from None
    names = mindcv.list_models()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=5, cutoff=0.5)
        raise UserError(
            f"network: mindcv {mindcv.__version__} has no network {name!r}"
            + (f"; similar names: {', '.join(near)}" if near else ""),
            hint=f"The names of all {len(names)}: python -c 'import mindcv; print(mindcv.list_models())'",
        )
    try:
        return mindcv.create_model(name, num_classes=classes, in_channels=channels, **options)
    except TypeError as error:
        raise UserError(f"network: {name} cannot be built with {options}: {error}") from error


def list_head(network: nn.Cell, **arguments: Any) -> list[str]:
    """Return the head's parameter names: those whose shapes depend on the class count.

    Args:
        network: By `build_network`.
        **arguments: The arguments that it was built with.
    """
    other = build_network(**{**arguments, "classes": arguments["classes"] + 1})
    shapes = {parameter.name: parameter.shape for parameter in other.get_parameters()}
    return [parameter.name for parameter in network.get_parameters() if parameter.shape != shapes[parameter.name]]
