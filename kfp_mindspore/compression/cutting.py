"""Network cuts, checked: the cut network must compute what the network does with the cut channels at zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.compression.groups import ChannelGroups, Group, build_groups, get_common_path, list_reshaped_sizes
from kfp_mindspore.compression.structure import trace
from kfp_mindspore.mindir.environment import NETWORK_ERRORS
from kfp_mindspore.mindir.export.graph import export_graph
from kfp_mindspore.mindir.graph.metadata import read_proto
from kfp_mindspore.mindir.parameters.network import scratch_directory
from kfp_mindspore.mindir.parameters.widths import cut_network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.compression.groups import Kept

    Arrays = Mapping[str, NDArray[Any]]
    # Layer path, attribute and its value by group name.
    Edits = dict[str, list[tuple[str, str, int]]]

_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Cutter:
    """A network's groups with everything that is needed to cut it.

    Args:
        build: Builds the whole network.
        values: Its parameters by name.
        inputs: Samples by input name, in the network's order, each with shape (N, …).
        groups: The groups that can be cut.
        edits: Layer attributes that have to change with a group, such as the head count.
        former: How the network was cut before.
    """

    build: Callable[[], Any]
    values: Arrays
    inputs: Arrays
    groups: ChannelGroups
    edits: Edits = field(default_factory=dict)
    former: Mapping[str, Any] = field(default_factory=dict)

    def describe(self, kept: Kept) -> dict[str, Any]:
        """Return a cut as `cut_network` takes it, in addition to the network's former one."""
        indices = self.groups.list_indices(kept)
        shapes = {name: [len(axis) for axis in axes] for name, axes in indices.items()}
        attributes: dict[str, dict[str, int]] = {}
        for name, edits in self.edits.items():
            mask = kept.get(name)
            if mask is not None and not mask.all():
                for path, attribute, value in edits:
                    attributes.setdefault(path, {})[attribute] = value * int(mask.sum()) // len(mask)
        former = self.former.get("attributes", {})
        return {
            "shapes": {**self.former.get("shapes", {}), **shapes},
            "attributes": {
                path: {**former.get(path, {}), **attributes.get(path, {})} for path in {**former, **attributes}
            },
        }

    def take(self, kept: Kept) -> dict[str, NDArray[Any]]:
        """Return the parameters that stay, by name."""
        indices = self.groups.list_indices(kept)
        return {
            name: np.ascontiguousarray(value[np.ix_(*indices[name])]) if name in indices else value
            for name, value in self.values.items()
        }

    def mask(self, kept: Kept) -> dict[str, NDArray[Any]]:
        """Return all parameters with zeros where cut channels are multiplied by."""
        masked = dict(self.values)
        for name, mask in kept.items():
            group = self.groups.groups[name]
            for parameter, axis in group.consumed:
                units = group.slots[parameter, axis]
                gone = (units >= 0) & ~mask[units]
                value = np.array(masked[parameter])
                np.moveaxis(value, axis, 0)[gone] = 0
                masked[parameter] = value
        return masked

    def cut(self, kept: Kept) -> Any:
        """Return the network with the kept units."""
        network = self.build()
        cut = self.describe(kept)
        cut_network(network, {name: found for name, found in cut.items() if found})
        set_parameters(network, self.take(kept))
        return network.set_train(False)

    def compute(self, network: Any) -> list[NDArray[Any]]:
        """Return a network's outputs for the samples, without compiling it."""
        import mindspore

        from kfp_mindspore.compat.graph_executor import flatten_outputs

        mode = mindspore.get_context("mode")
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        try:
            outputs = network(*(mindspore.Tensor(array) for array in self.inputs.values()))
        finally:
            mindspore.set_context(mode=mode)
        return flatten_outputs(tuple(outputs.values()) if isinstance(outputs, Mapping) else outputs)

    def is_sound(self, kept: Kept) -> bool:
        """Return whether the cut network runs, and computes what the masked one does."""
        try:
            found = self.compute(self.cut(kept))
        except NETWORK_ERRORS:
            return False
        touched = [self.groups.groups[name] for name, mask in kept.items() if not mask.all()]
        if not all(group.is_exact for group in touched):
            return all(bool(np.isfinite(array).all()) for array in found if array.dtype.kind == "f")
        masked = self.build().set_train(False)
        set_parameters(masked, self.mask(kept))
        expected = self.compute(masked)
        return all(
            one.shape == other.shape and np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * _scale(one))
            for one, other in zip(expected, found, strict=True)
        )


def find_groups(
    build: Callable[[], Any], values: Arrays, inputs: Arrays, former: Mapping[str, Any] | None = None
) -> Cutter:
    """Find a network's groups that can be cut, each checked by cutting one unit.

    Args:
        build: Builds the network with `values`' shapes.
        values: Its parameters by name.
        inputs: Samples by input name, in the network's order, each with shape (N, …); two are used.
        former: How the network was cut before.

    Raises:
        UserError: The network cannot be exported.
    """
    network = build().set_train(False)
    set_parameters(network, values)
    few = {name: array[:2] for name, array in inputs.items()}
    with scratch_directory() as scratch:
        file = export_graph(network, scratch, few, 1, {})
        structure = trace(read_proto(file))
    shapes = {parameter.name: tuple(parameter.shape) for parameter in network.get_parameters()}
    trainable = [parameter.name for parameter in network.trainable_params()]
    groups = build_groups(structure, shapes, trainable)
    cutter = Cutter(build, values, few, groups, {}, former or {})
    exact = [name for name, group in groups.groups.items() if group.is_exact]
    if cutter.is_sound(drop_one(groups, exact)):
        suspect = [name for name in groups.groups if name not in exact]
    else:
        suspect = list(groups.groups)
    edits: Edits = {}
    failed = []
    for name in suspect:
        kept = drop_one(groups, [name])
        if cutter.is_sound(kept):
            continue
        found = _list_edits(network, groups, groups.groups[name])
        # Another number may have the same value by chance.
        tried = [found, *([edit] for edit in found if len(found) > 1)]
        for choice in filter(None, tried):
            if Cutter(build, values, few, groups, {name: choice}, former or {}).is_sound(kept):
                edits[name] = choice
                break
        else:
            failed.append(name)
    return Cutter(build, values, few, groups.without(failed, "the layer's code needs this width"), edits, former or {})


def drop_one(groups: ChannelGroups, names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return a selection without some groups' last units."""
    kept = {name: mask.copy() for name, mask in groups.whole.items()}
    for name in names:
        kept[name][-1] = False
    return kept


def set_parameters(network: Any, values: Arrays) -> None:
    """Set a network's parameters by name; others keep their value."""
    import mindspore

    for parameter in network.get_parameters():
        if parameter.name in values:
            parameter.set_data(mindspore.Tensor(values[parameter.name]))


def _list_edits(network: Any, groups: ChannelGroups, group: Group) -> list[tuple[str, str, int]]:
    """Return the whole numbers in the layers around a group that equal its reshaped axes' lengths."""
    sizes = {size for size in list_reshaped_sizes(groups.structure, group) if size % len(group) == 0}
    top = get_common_path([name for name, _ in group.slots])
    found = []
    for path, cell in network.cells_and_names():
        is_inside = not top or path == top or path.startswith(f"{top}.")
        if is_inside and not type(cell).__module__.startswith("mindspore."):
            found += [
                (path, name, value)
                for name, value in vars(cell).items()
                if type(value) is int and value in sizes and not name.startswith("_")
            ]
    return found


def _scale(array: NDArray[Any]) -> float:
    return max(1.0, float(np.abs(array).max(initial=0)))
