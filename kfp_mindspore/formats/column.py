"""The description of a dataset column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A named dataset column.

    Args:
        name: Such as `image`; a feature column's name is a request input's name.
        dtype: NumPy dtype name, or `bytes` for texts (UTF-8) and encoded images.
        shape: One sample's shape, () for a number or a text; the first size is -1 for lists with unequal lengths, which
            are arrays of arrays.
        role: `feature`, `target`, `weight` or `id`.
        fields: Source columns that are stacked in it, in order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str = "feature"
    fields: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Column:
        """Rebuild a column from its JSON form."""
        shape = tuple(int(size) for size in value["shape"])
        fields = tuple(str(name) for name in value["fields"])
        return cls(str(value["name"]), str(value["dtype"]), shape, str(value["role"]), fields)
