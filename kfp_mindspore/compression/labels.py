"""Channel labels: disjoint sets over parameter axes' indices, and label arrays for a graph's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Labels = NDArray[np.int64]


class Channels:
    """Disjoint label sets. A label stands for one index of a parameter's axis; a set is removed as a whole.

    A frozen set cannot be removed; it has the first reason that was given.
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._reasons: dict[int, str] = {}
        self.slots: dict[tuple[str, int], Labels] = {}

    def create(self, count: int) -> Labels:
        """Return new labels, each in its own set."""
        first = len(self._parents)
        self._parents += range(first, first + count)
        return np.arange(first, first + count)

    def get_slot(self, parameter: str, axis: int, size: int) -> Labels:
        """Return the labels for a parameter's axis, one an index."""
        if (parameter, axis) not in self.slots:
            self.slots[parameter, axis] = self.create(size)
        return self.slots[parameter, axis]

    def find(self, label: int) -> int:
        """Return the label that represents a label's set."""
        root = label
        while self._parents[root] != root:
            root = self._parents[root]
        while self._parents[label] != root:
            self._parents[label], label = root, self._parents[label]
        return root

    def find_all(self, labels: Labels) -> Labels:
        """Return representatives in the same shape."""
        unique, inverse = np.unique(labels, return_inverse=True)
        roots = np.array([self.find(int(label)) for label in unique], np.int64)
        return roots[inverse].reshape(labels.shape)

    def join(self, one: Labels, other: Labels) -> None:
        """Join sets elementwise; the arrays are broadcast."""
        pairs = np.stack(np.broadcast_arrays(compact(one), compact(other))).reshape(2, -1).T
        for first, second in np.unique(pairs, axis=0).tolist():
            kept, gone = self.find(first), self.find(second)
            if kept != gone:
                self._parents[gone] = kept
                if gone in self._reasons:
                    self._reasons.setdefault(kept, self._reasons.pop(gone))

    def join_along(self, labels: Labels, axis: int) -> Labels:
        """Join the sets along an axis, and return its first index's labels, without the axis."""
        first: Labels = np.take(labels, 0, axis)
        if varies(labels, axis):
            self.join(np.moveaxis(labels, axis, 0), first)
        return first

    def get_vector(self, labels: Labels, axis: int) -> Labels:
        """Return one label for each index of an axis; sets along the other axes are joined."""
        moved = np.moveaxis(labels, axis, 0)
        moved = compact(moved, keep=(0,))
        flat = moved.reshape(len(moved), -1)
        return self.join_along(flat, 1)

    def freeze(self, labels: Labels, reason: str) -> None:
        """Mark sets as not removable."""
        for label in np.unique(compact(labels)).tolist():
            self._reasons.setdefault(self.find(label), reason)

    def get_reason(self, label: int) -> str:
        """Return why a label's set is frozen; empty if it is not."""
        return self._reasons.get(self.find(label), "")


def compact(labels: Labels, keep: Sequence[int] = ()) -> Labels:
    """Return labels with length 1 along broadcast axes, in which all are equal."""
    index = tuple(
        slice(0, 1) if stride == 0 and size > 1 and axis not in keep else slice(None)
        for axis, (stride, size) in enumerate(zip(labels.strides, labels.shape, strict=True))
    )
    return labels[index]


def varies(labels: Labels, axis: int) -> bool:
    """Return whether labels differ along an axis."""
    if labels.shape[axis] < 2 or labels.strides[axis] == 0:
        return False
    narrow = compact(labels, keep=(axis,))
    return bool((narrow != np.take(narrow, [0], axis)).any())


def spread(vector: Labels, axis: int, shape: Sequence[int]) -> Labels:
    """Return labels with a shape that vary along one axis."""
    lengths = [1] * len(shape)
    lengths[axis] = len(vector)
    return np.broadcast_to(vector.reshape(lengths), tuple(shape))
