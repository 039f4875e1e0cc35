"""Channel groups that can be cut, and network sizes after a cut."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.compression.labels import compact, varies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.compression.structure import Structure

    Slot = tuple[str, int]
    # Which units of each group stay.
    Kept = Mapping[str, NDArray[np.bool_]]

# A group keeps at least this part of its units.
LEAST_KEPT = 0.1


@dataclass(frozen=True)
class Group:
    """Units, such as channels or attention heads, that the same parameters hold.

    Args:
        name: The layer that computes them.
        units: Their label sets.
        slots: For each parameter axis, the unit by index; -1 where another group has the index.
        produced: The axes among them that compute the units; the others are multiplied by them or normalize them.
        consumed: The axes that the units are multiplied by.
        is_exact: Whether the network without a unit computes what it does with the unit's values at zero. A LayerNorm
            over the units has other statistics without one.
    """

    name: str
    units: tuple[int, ...]
    slots: Mapping[Slot, NDArray[np.int64]]
    produced: tuple[Slot, ...]
    consumed: tuple[Slot, ...]
    is_exact: bool

    def __len__(self) -> int:
        return len(self.units)

    @property
    def least(self) -> int:
        """How many units stay at least."""
        return max(1, math.ceil(LEAST_KEPT * len(self)))


@dataclass(frozen=True)
class Left:
    """A layer whose channels are not cut.

    Args:
        layer: The layer.
        reason: Such as `the network's output`.
    """

    layer: str
    reason: str


@dataclass(frozen=True)
class ChannelGroups:
    """A network's groups.

    Args:
        structure: The traced graph.
        groups: The groups by name.
        left: Layers that are not cut.
        shapes: The shapes of the network's parameters, by name.
        trainable: Those that count as parameters: without moving averages.
    """

    structure: Structure
    groups: Mapping[str, Group]
    left: tuple[Left, ...]
    shapes: Mapping[str, tuple[int, ...]]
    trainable: frozenset[str]

    @cached_property
    def whole(self) -> Kept:
        """All groups' units."""
        return {name: np.ones(len(group), bool) for name, group in self.groups.items()}

    def without(self, names: Iterable[str], reason: str) -> ChannelGroups:
        """Return the groups without some of them, which are left for a reason."""
        gone = set(names)
        left = (*self.left, *(Left(name, reason) for name in self.groups if name in gone))
        groups = {name: group for name, group in self.groups.items() if name not in gone}
        return ChannelGroups(self.structure, groups, left, self.shapes, self.trainable)

    def list_indices(self, kept: Kept) -> dict[str, list[NDArray[np.int64]]]:
        """Return the kept indices along each axis, for each parameter that loses some."""
        axes: dict[str, list[NDArray[np.bool_]]] = {}
        for name, mask in kept.items():
            for (parameter, axis), units in self.groups[name].slots.items():
                if parameter not in axes:
                    axes[parameter] = [np.ones(size, bool) for size in self.shapes[parameter]]
                axes[parameter][axis] &= (units < 0) | mask[units]
        return {
            parameter: [np.flatnonzero(axis) for axis in found]
            for parameter, found in axes.items()
            if not all(axis.all() for axis in found)
        }

    def get_shapes(self, kept: Kept) -> dict[str, tuple[int, ...]]:
        """Return all parameters' shapes."""
        cut = {name: tuple(map(len, axes)) for name, axes in self.list_indices(kept).items()}
        return {**self.shapes, **cut}

    def count_parameters(self, kept: Kept) -> int:
        """Return how many values are trainable."""
        return sum(math.prod(shape) for name, shape in self.get_shapes(kept).items() if name in self.trainable)

    def count_flops(self, kept: Kept) -> int:
        """Return two operations for each multiplication by a weight or between activations, for one sample."""
        return sum(self.count_layer_flops(kept).values())

    def count_layer_flops(self, kept: Kept) -> dict[str, int]:
        """Return `count_flops` by weight; activation products are under an empty name."""
        shapes, gone = self.get_shapes(kept), self._list_gone(kept)
        found: dict[str, int] = defaultdict(int)
        for work in self.structure.work:
            if work.labels is None:
                found[work.parameter] += 2 * work.positions * math.prod(shapes[work.parameter])
            else:
                stays = ~np.isin(self.structure.channels.find_all(work.labels), gone)
                found[""] += round(2 * work.positions * work.size * float(stays.mean()))
        return dict(found)

    def _list_gone(self, kept: Kept) -> list[int]:
        return [
            unit
            for name, mask in kept.items()
            for unit, stays in zip(self.groups[name].units, mask, strict=True)
            if not stays
        ]


def build_groups(
    structure: Structure, shapes: Mapping[str, tuple[int, ...]], trainable: Iterable[str]
) -> ChannelGroups:
    """Group channels that the same parameters hold.

    Args:
        structure: The traced graph.
        shapes: The network's parameter shapes by name.
        trainable: Trainable parameters' names.
    """
    channels = structure.channels
    roots = {slot: channels.find_all(labels) for slot, labels in channels.slots.items() if slot[0] in shapes}
    members: dict[int, dict[Slot, int]] = defaultdict(dict)
    for slot, found in roots.items():
        for root, count in zip(*np.unique(found, return_counts=True), strict=True):
            members[int(root)][slot] = int(count)
    normalized = {int(root) for labels in structure.normalized for root in channels.find_all(labels).tolist()}
    families: dict[Any, list[int]] = defaultdict(list)
    left: dict[str, str] = {}
    for root, slots in members.items():
        produced = [slot for slot in slots if slot in structure.produced]
        if reason := channels.get_reason(root):
            left |= {_get_owner(name): reason for name, _ in produced}
        elif produced and any(slot in structure.consumed for slot in slots):
            families[frozenset(slots.items())].append(root)
    groups: dict[str, Group] = {}
    for family in families.values():
        slots = members[family[0]]
        produced = [slot for slot in slots if slot in structure.produced]
        name = _get_owner(produced[0][0])
        if len(family) == 1:
            left[name] = "one unit"
            continue
        ordinals = {root: index for index, root in enumerate(family)}
        name = name if name not in groups else f"{name} ({len(groups)})"
        groups[name] = Group(
            name,
            tuple(family),
            {slot: np.array([ordinals.get(int(root), -1) for root in roots[slot]]) for slot in slots},
            tuple(produced),
            tuple(slot for slot in slots if slot in structure.consumed),
            not normalized & set(family),
        )
    return ChannelGroups(
        structure,
        groups,
        tuple(Left(layer, reason) for layer, reason in left.items()),
        dict(shapes),
        frozenset(trainable),
    )


def list_reshaped_sizes(structure: Structure, group: Group) -> set[int]:
    """Return the lengths of axes along which reshaped values hold a group's different units."""
    units, sizes = np.array(group.units), set()
    for labels in structure.reshaped:
        found = structure.channels.find_all(compact(labels))
        if np.isin(found, units).any():
            sizes |= {labels.shape[axis] for axis in range(labels.ndim) if varies(found, axis)}
    return sizes


def select_units(
    groups: ChannelGroups, scores: Mapping[str, NDArray[Any]], part: float
) -> dict[str, NDArray[np.bool_]]:
    """Return the units that stay when each group loses a fraction of its units, the least scored.

    Args:
        groups: The groups.
        scores: Scores by group, one a unit.
        part: The fraction, 0 to 1; each group keeps a least number.
    """
    kept = {}
    for name, group in groups.groups.items():
        count = max(group.least, round(len(group) * (1 - part)))
        order = np.argsort(-np.asarray(scores[name], np.float64), kind="stable")
        kept[name] = np.zeros(len(group), bool)
        kept[name][order[:count]] = True
    return kept


def _get_owner(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def get_common_path(names: Sequence[str]) -> str:
    """Return the layer path that is common to parameters."""
    paths = [name.split(".")[:-1] for name in names]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
