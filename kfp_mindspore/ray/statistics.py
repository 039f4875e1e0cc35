"""What Ray Data's passes find in blocks; parts are merged in any order."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.data.moments import show_moment
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import SPLITS, Column
from kfp_mindspore.formats.tensors import BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

# More different texts are no categories; they need a Tokenize step with values.
MAX_VALUES = 10_000
Span = tuple[tuple[float, str], tuple[float, str]]
"""A split's first and last moment, each as a number in order of time and as text."""


@dataclass
class Moments:
    """Values that are not missing, by field: count, mean, squared deviations, least and greatest.

    Parts are merged by Chan's formulas.
    """

    count: NDArray[Any]
    mean: NDArray[Any]
    squares: NDArray[Any]
    least: NDArray[Any]
    greatest: NDArray[Any]

    @classmethod
    def measure(cls, array: NDArray[Any]) -> Moments:
        """Measure a block's values with shape (N,) or (N, fields)."""
        rows = array.astype(np.float64) if array.ndim == 2 else array.reshape(-1, 1).astype(np.float64)
        known = ~np.isnan(rows)
        count = known.sum(axis=0)
        mean = np.where(known, rows, 0).sum(axis=0) / np.maximum(count, 1)
        squares = np.where(known, (rows - mean) ** 2, 0).sum(axis=0)
        least, greatest = np.where(known, rows, np.inf).min(axis=0), np.where(known, rows, -np.inf).max(axis=0)
        return cls(count, mean, squares, least, greatest)

    def merge(self, other: Moments) -> Moments:
        """Return both parts' moments."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        delta = other.mean - self.mean
        squares = self.squares + other.squares + delta**2 * self.count * share
        least, greatest = np.minimum(self.least, other.least), np.maximum(self.greatest, other.greatest)
        return Moments(count, self.mean + delta * share, squares, least, greatest)

    def describe(self, column: Column) -> dict[str, Any]:
        """Return min, max, mean and std, a list each for a column with fields."""
        found = {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "std": np.sqrt(self.squares / self.count),
        }
        return {key: value.tolist() if len(column.shape) == 1 else float(value[0]) for key, value in found.items()}


@dataclass
class Lowest:
    """The values with the lowest keys of all that were seen: with hashes as keys, a uniform sample.

    Args:
        size: Most values that are kept.
        count: Values that were seen.
        keys: The kept values' keys.
        values: The kept values, with shape (N, …).
    """

    size: int
    count: int
    keys: NDArray[np.uint64]
    values: NDArray[Any]

    @classmethod
    def select(cls, size: int, keys: NDArray[np.uint64], values: NDArray[Any]) -> Lowest:
        """Keep the values with the lowest keys."""
        chosen = np.argsort(keys, kind="stable")[:size]
        return cls(size, len(keys), keys[chosen], values[chosen])

    def merge(self, other: Lowest) -> Lowest:
        """Return the lowest of both parts."""
        keys, values = np.concatenate([self.keys, other.keys]), np.concatenate([self.values, other.values])
        return dataclasses.replace(Lowest.select(self.size, keys, values), count=self.count + other.count)


def select_lowest(size: int, keys: NDArray[np.uint64], values: NDArray[Any], chosen: NDArray[np.bool_]) -> Lowest:
    """Keep the lowest of the chosen samples."""
    return Lowest.select(size, keys[chosen], values[chosen])


def describe_spans(values: NDArray[Any], order: NDArray[Any], splits: NDArray[np.int8], unit: str) -> dict[str, Span]:
    """Return each split's first and last moment in a block, see `data.moments.describe_moments`."""
    found: dict[str, Span] = {}
    for index, split in enumerate(SPLITS):
        (chosen,) = np.nonzero(splits == index)
        if len(chosen):
            first, last = chosen[order[chosen].argmin()], chosen[order[chosen].argmax()]
            found[split] = (
                (float(order[first]), show_moment(values[first], unit)),
                (float(order[last]), show_moment(values[last], unit)),
            )
    return found


@dataclass
class Findings:
    """What the first pass finds, in one block or in all."""

    counts: Counter[str] = field(default_factory=Counter)
    moments: dict[str, Moments] = field(default_factory=dict)
    values: dict[str, set[Any]] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    dropped: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: set[str] = field(default_factory=set)
    lowest: dict[str, Lowest] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)

    def merge(self, other: Findings) -> None:
        """Add another block's findings.

        Raises:
            UserError: A field has two types or shapes, or too many different texts.
        """
        self.counts += other.counts
        self.dropped += other.dropped
        self.sizes += other.sizes
        self.modes |= other.modes
        for split, (first, last) in other.spans.items():
            known_first, known_last = self.spans.get(split, (first, last))
            self.spans[split] = (min(first, known_first), max(last, known_last))
        for name, moments in other.moments.items():
            self.moments[name] = self.moments[name].merge(moments) if name in self.moments else moments
        for name, lowest in other.lowest.items():
            self.lowest[name] = self.lowest[name].merge(lowest) if name in self.lowest else lowest
        for name, values in other.values.items():
            known_values = self.values.setdefault(name, set())
            known_values.update(values)
            if len(known_values) > MAX_VALUES and isinstance(next(iter(known_values)), bytes):
                raise UserError(f"{name}: has more than {MAX_VALUES} different values, which are no categories")
        for name, column in other.columns.items():
            known = self.columns.setdefault(name, column)
            if column != known:
                # An integer column may fit int32 in one block only.
                dtype = (
                    np.promote_types(known.dtype, column.dtype).name if BYTES not in (known.dtype, column.dtype) else ""
                )
                if not dtype or known.shape != column.shape:
                    raise UserError(
                        f"{name}: must have one type and shape, got {known.dtype} {known.shape} and "
                        f"{column.dtype} {column.shape}"
                    )
                self.columns[name] = dataclasses.replace(known, dtype=dtype)

    def fill(self, columns: list[Column], rule: str) -> dict[str, list[float]]:
        """Return the fields' means or medians by column, and count them as the missing values."""
        filled = {}
        for column in columns:
            moments = self.moments.get(column.name)
            if moments is None or np.dtype(column.dtype).kind != "f":
                continue
            values = moments.mean
            if rule == "median":
                rows = self.lowest[column.name].values
                known = [one[~np.isnan(one)] for one in rows.reshape(len(rows), -1).T]
                values = np.array([np.median(one) if len(one) else 0.0 for one in known])
            missing = self.counts["train"] - moments.count
            self.moments[column.name] = moments.merge(Moments(missing, values, 0 * values, values, values))
            filled[column.name] = values.tolist()
        return filled


def list_values(array: NDArray[Any]) -> list[Any]:
    """Return the different values; of texts at most one more than `MAX_VALUES`."""
    values: list[Any] = np.unique(array).tolist() if array.dtype != object else list(set(array.tolist()))
    return values if len(values) <= MAX_VALUES or array.dtype != object else values[: MAX_VALUES + 1]
