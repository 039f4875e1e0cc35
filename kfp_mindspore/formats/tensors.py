"""Tensor specs, and how arrays differ from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES = "bytes"
"""dtype of texts and encoded images, as `bytes` objects: of a transform's inputs and outputs, never of a graph's."""

_LISTED = 20


@dataclass(frozen=True)
class TensorSpec:
    """One input's or output's name, dtype, shape and range.

    Args:
        name: Such as `image`.
        dtype: NumPy name, such as `float32`; `bytes` for texts and encoded images that a transform takes.
        shape: -1 for a free dimension.
        range: An input's least and greatest value, both included; None without a limit. Indices into a table have one:
            the graph raises on an index outside it.
        columns: A table's columns in an input, in order, for messages.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float] | None = None
    columns: tuple[str, ...] = field(default=(), compare=False)

    def describe_mismatch(self, dtype: str, shape: Sequence[int]) -> str:
        """Return how an array differs from this.

        Args:
            dtype: The array type's NumPy name.
            shape: The array's shape; -1 for the size in which a list of arrays differs.

        Returns:
            Such as `shape must be (-1, 1, 8, 8), got (3, 8, 8)`, or an empty text when the array fits.
        """
        if dtype != self.dtype:
            return f"dtype must be {self.dtype}, got {dtype}"
        fits = len(shape) == len(self.shape) and all(
            size == wanted >= 0 or (wanted == -1 and size != 0) for size, wanted in zip(shape, self.shape, strict=True)
        )
        return "" if fits else f"shape must be {self.describe_shape()}, got {tuple(shape)}"

    def describe_shape(self) -> str:
        """Return the shape, with the columns' names where they are known."""
        listed = ", ".join(self.columns[:_LISTED]) + (", …" if len(self.columns) > _LISTED else "")
        return f"{self.shape} ({listed})" if listed else str(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON types."""
        value: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        return value if self.range is None else {**value, "range": list(self.range)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> TensorSpec:
        """Rebuild a spec from `to_dict`'s result.

        Raises:
            ValueError: The range is not two numbers in ascending order.
        """
        shape = tuple(int(size) for size in value["shape"])
        limits = parse_range(value["range"]) if "range" in value else None
        return cls(str(value["name"]), str(value["dtype"]), shape, limits)


def parse_range(value: Any) -> tuple[float, float]:
    """Validate an input's range.

    Args:
        value: Such as [0, 29999]: the least and the greatest value, both included.

    Raises:
        ValueError: It is not two numbers in ascending order.
    """
    numbers = isinstance(value, list | tuple) and all(
        isinstance(item, int | float) and not isinstance(item, bool) and item == item for item in value
    )
    if not numbers or len(value) != 2 or value[0] > value[1]:
        raise ValueError(f"must be [least, greatest], got {value!r:.80}")
    return value[0], value[1]


def list_mismatches(
    specs: Sequence[TensorSpec], arrays: Mapping[str, NDArray[Any]], *, ragged: bool = False
) -> dict[str, str]:
    """Compare arrays with specs by name, dtype and shape.

    Args:
        specs: The expected tensors.
        arrays: Arrays by name; an array of `bytes` objects has dtype `bytes`.
        ragged: Whether an array may hold a list of arrays with unequal lengths, for a free second dimension.

    Returns:
        What is wrong by name, such as {"image": "shape must be (-1, 1, 8, 8), got (3, 8, 8)"}; empty when all fit.
    """
    expected = {spec.name: spec for spec in specs}
    found = {name: f"missing, got {', '.join(map(repr, arrays)) or 'none'}" for name in expected if name not in arrays}
    found |= {name: f"unknown, expected {', '.join(map(repr, expected))}" for name in arrays if name not in expected}
    for name, spec in expected.items():
        if name not in arrays:
            continue
        array = arrays[name]
        found_type, shape = get_row_type(array) if ragged and is_ragged(array) else (get_dtype(array), array.shape)
        if mismatch := spec.describe_mismatch(found_type, shape):
            found[name] = mismatch
    return found


def get_dtype(array: NDArray[Any]) -> str:
    """Return an array's dtype name as specs have it."""
    if array.dtype == object and all(isinstance(value, bytes) for value in array.flat):
        return BYTES
    return array.dtype.name


def is_ragged(array: NDArray[Any]) -> bool:
    """Return whether an array holds a list of arrays, whose shapes may differ."""
    return array.dtype == object and array.ndim == 1 and len(array) > 0 and hasattr(array[0], "dtype")


def get_row_type(array: NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    """Return the common dtype and shape of arrays: -1 for the length, and for each further size in which they differ.

    The dtype is `object` when the rows have several.
    """
    dtypes, shapes = {row.dtype for row in array}, {row.shape[1:] for row in array}
    dtype = dtypes.pop().name if len(dtypes) == 1 else "object"
    return dtype, (len(array), -1, *(shapes.pop() if len(shapes) == 1 else (-1,)))


def describe_unequal_rows(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return which arrays have different row counts; empty when all have the same."""
    if len({len(array) for array in arrays.values()}) <= 1:
        return ""
    found = ", ".join(f"{len(array)} in {name!r}" for name, array in arrays.items())
    return f"must have the same number of rows, got {found}"
