"""Cache rows of prompt prefixes, by hash chains of token blocks."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 16


class PrefixCache:
    """Rows of token blocks; the least recently used are dropped.

    A block's key is the hash of the model's adapter and all tokens up to the block's end, so equal keys mean equal
    prefixes.

    Args:
        max_bytes: Most bytes; 0 disables the cache.
        row_bytes: Bytes per token.
    """

    def __init__(self, max_bytes: int, row_bytes: int) -> None:
        self._blocks: OrderedDict[bytes, NDArray[Any]] = OrderedDict()
        self._capacity = max_bytes // (BLOCK * row_bytes)

    def __len__(self) -> int:
        return len(self._blocks)

    def list_keys(self, ids: NDArray[np.int32], adapter: str = "") -> list[bytes]:
        """Return the keys of a sequence's complete blocks.

        Args:
            ids: Token IDs.
            adapter: The adapter's key; empty for the base model.
        """
        keys, key = [], hashlib.sha256(adapter.encode()).digest()
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = hashlib.sha256(key + ids[start : start + BLOCK].tobytes()).digest()
            keys.append(key)
        return keys

    def get(self, keys: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the rows of the longest cached beginning."""
        count = next((index for index, key in enumerate(keys) if key not in self._blocks), len(keys))
        # The last block first: it is dropped before the blocks that it needs.
        for key in reversed(keys[:count]):
            self._blocks.move_to_end(key)
        return [self._blocks[key] for key in keys[:count]]

    def lacks(self, key: bytes) -> bool:
        """Return whether a block is to be stored."""
        return self._capacity > 0 and key not in self._blocks

    def put(self, key: bytes, rows: NDArray[Any]) -> None:
        """Store a block's rows."""
        while len(self._blocks) >= self._capacity:
            self._blocks.popitem(last=False)
        self._blocks[key] = rows
