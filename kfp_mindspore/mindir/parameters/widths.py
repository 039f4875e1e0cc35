"""Networks with other widths than their factory builds: cut in place, before their parameters are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, NetworkSpec

if TYPE_CHECKING:
    from pathlib import Path

    from mindspore import nn

_HINT = "The checkpoint is of another network, or the network's code has changed since it was compressed."
# Attributes of mindspore.nn and mindspore.mint.nn layers by the weight's axis that has their size.
_INPUTS = {"in_channels": 1, "in_features": 1}
_OUTPUTS = {"out_channels": 0, "out_features": 0, "num_features": 0}
# How networks that were built from a checkpoint are built again: `fit` writes it into the next checkpoint.
_specs: WeakKeyDictionary[Any, NetworkSpec] = WeakKeyDictionary()


def load_network(path: Path | str) -> nn.Cell:
    """Build a checkpoint's network with the recorded widths and parameters.

    `fit` trains such a network further, and writes how to build it into its own checkpoints.

    Args:
        path: A checkpoint directory by `fit` or `compress`.

    Raises:
        UserError: There is no such checkpoint, or it does not fit the network's code.
    """
    from kfp_mindspore.mindir.parameters.files import get_source, load_matching, open_checkpoint, read_parameters

    checkpoint = open_checkpoint(path)
    network = build_described(checkpoint)
    load_matching(network, read_parameters(checkpoint.path), get_source(checkpoint))
    return network


def build_described(checkpoint: Checkpoint) -> nn.Cell:
    """Build a checkpoint's network with the recorded widths, without parameters.

    Raises:
        UserError: The checkpoint does not record how the network is built, or it cannot be built.
    """
    from kfp_mindspore.mindir.parameters.network import build_network

    spec = checkpoint.network
    if not spec.factory:
        raise UserError(
            f"{checkpoint.path}: does not record how the network is built",
            hint="Train it with TrainingConfig(network_factory='module:callable').",
        )
    network = build_network(spec.factory, spec.arguments)
    cut_network(network, spec.cut)
    record_spec(network, spec)
    return network


def record_spec(network: Any, spec: NetworkSpec) -> None:
    """Record how a network is built, for the checkpoints that `fit` writes."""
    _specs[network] = spec


def get_spec(network: Any) -> NetworkSpec | None:
    """Return how a network is built that came from a checkpoint."""
    return _specs.get(network)


def cut_network(network: nn.Cell, cut: Mapping[str, Any]) -> None:
    """Give a network other widths.

    Parameter values are undefined afterwards. MindSpore keeps what it has compiled before: cut first.

    Args:
        network: The network as the factory builds it.
        cut: `shapes`: shape by parameter name; `attributes`: number by attribute by layer path. Empty for no change.

    Raises:
        UserError: A parameter or layer is missing, or a shape is larger than the network's.
    """
    shapes = {name: tuple(shape) for name, shape in cut.get("shapes", {}).items()}
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    for name, shape in shapes.items():
        found = None if name not in parameters else tuple(parameters[name].shape)
        if found is None or len(found) != len(shape) or any(map(int.__lt__, found, shape)):
            raise UserError(
                f"{type(network).__name__}: {name} must have a shape of at least {shape} to be cut, "
                f"found {found or 'no such parameter'}",
                hint=_HINT,
            )
    cells = dict(network.cells_and_names())
    for path, attributes in cut.get("attributes", {}).items():
        if path not in cells:
            raise UserError(f"{type(network).__name__}: has no layer {path!r} to be cut", hint=_HINT)
        for name, value in attributes.items():
            setattr(cells[path], name, value)
    for name, shape in shapes.items():
        resize_parameter(parameters[name], shape)
    for cell in cells.values():
        own = dict(cell.parameters_and_names(expand=False))
        if any(parameter.name in shapes for parameter in own.values()):
            _update_attributes(cell, own)


def replace_layer(network: nn.Cell, path: str, layer: nn.Cell) -> None:
    """Replace a layer; all parameters keep the names that they have in their cells.

    MindSpore 2.9 prefixes them by the nearest attribute only, so that equal blocks would have equal names.

    Args:
        network: The network.
        path: The layer's path.
        layer: The new layer.
    """
    names = [(parameter, parameter.name) for parameter in layer.get_parameters()]
    parent, _, own = path.rpartition(".")
    holder: Any = dict(network.cells_and_names())[parent]
    if own.isdigit():
        holder[int(own)] = layer
    else:
        setattr(holder, own, layer)
    for parameter, name in names:
        parameter.name = name


def resize_parameter(parameter: Any, shape: Sequence[int]) -> None:
    """Cut a parameter in place to a smaller shape; the values are the first ones along each axis."""
    import mindspore

    index = tuple(slice(0, size) for size in shape)
    parameter.set_data(mindspore.Tensor(parameter.asnumpy()[index].copy()), slice_shape=True)


def _update_attributes(cell: Any, own: Mapping[str, Any]) -> None:
    """Set a layer's own numbers by the parameters' shapes."""
    weight = next((own[name] for name in own if name in ("weight", "gamma", "embedding_table")), None)
    if weight is None:
        return
    shape = tuple(weight.shape)
    if getattr(cell, "group", 1) not in (1, None):
        cell.group = cell.in_channels = cell.out_channels = shape[0]
    else:
        for name, axis in (_INPUTS | _OUTPUTS).items():
            if isinstance(getattr(cell, name, None), int) and axis < len(shape):
                setattr(cell, name, shape[axis])
    if hasattr(cell, "normalized_shape"):
        cell.normalized_shape = shape
    if hasattr(cell, "embedding_size"):
        cell.embedding_size = shape[-1]
    primitive: Any = getattr(cell, "conv2d", None)
    for name, value in (("out_channel", shape[0]), ("group", getattr(cell, "group", 1))):
        if hasattr(primitive, "add_prim_attr") and hasattr(primitive, name):
            setattr(primitive, name, value)
            primitive.add_prim_attr(name, value)
