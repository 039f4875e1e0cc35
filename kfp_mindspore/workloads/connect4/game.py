"""Connect-4 rules, for many games at once.

A position is two bitboards with 7 bits per column, the lowest for the bottom row, the highest always 0, see
http://blog.gamesolver.org/solving-connect-four/06-bitboard/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS, COLUMNS = 6, 7
_ONE = np.uint64(1)
_COLUMN_BITS = np.uint64(ROWS + 1)
_BOTTOM = _ONE << (np.arange(COLUMNS, dtype=np.uint64) * _COLUMN_BITS)
_TOP = _BOTTOM << np.uint64(ROWS - 1)
_FULL = np.bitwise_or.reduce(_BOTTOM * np.uint64((1 << ROWS) - 1))
# Distance between neighbours: vertical, horizontal, both diagonals.
_STEPS = tuple(np.uint64(step) for step in (1, ROWS + 1, ROWS, ROWS + 2))
# Each cell's bit on a board whose first row is the top.
_CELLS = _BOTTOM << np.arange(ROWS, dtype=np.uint64)[::-1, None]


@dataclass(frozen=True)
class Positions:
    """Positions in N games.

    Args:
        own: Stones of the player to move, uint64 with shape (N,).
        filled: Both players' stones, uint64 with shape (N,).
    """

    own: NDArray[np.uint64]
    filled: NDArray[np.uint64]

    @classmethod
    def start(cls, games: int) -> Positions:
        """Return empty boards."""
        return cls(np.zeros(games, np.uint64), np.zeros(games, np.uint64))

    @classmethod
    def from_boards(cls, boards: NDArray[Any]) -> Positions:
        """Return board positions, see `to_boards`."""
        return cls(
            np.where(boards > 0, _CELLS, np.uint64(0)).sum((1, 2), np.uint64),
            np.where(boards != 0, _CELLS, np.uint64(0)).sum((1, 2), np.uint64),
        )

    def to_boards(self) -> NDArray[np.float32]:
        """Return boards with shape (N, 6, 7), the top row first: 1 the player to move, -1 the opponent, 0 empty."""
        own = (self.own[:, None, None] & _CELLS) != 0
        filled = (self.filled[:, None, None] & _CELLS) != 0
        boards: NDArray[np.float32] = 2 * own.astype(np.float32) - filled
        return boards

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, chosen: NDArray[Any]) -> Positions:
        return Positions(self.own[chosen], self.filled[chosen])

    def play(self, columns: NDArray[Any]) -> Positions:
        """Return the positions after one stone in the given column, 0 to 6, in each game."""
        return Positions(self.own ^ self.filled, self.filled | (self.filled + _BOTTOM[columns]))

    def switch(self) -> Positions:
        """Return the positions with the opponent to move."""
        return Positions(self.own ^ self.filled, self.filled)

    def list_legal(self) -> NDArray[np.bool_]:
        """Return which columns have an empty cell, shape (N, 7)."""
        legal: NDArray[np.bool_] = (self.filled[:, None] & _TOP) == 0
        return legal

    def list_wins(self) -> NDArray[np.bool_]:
        """Return which columns connect four stones for the player to move, shape (N, 7)."""
        cells = (self.filled[:, None] + _BOTTOM) & ~self.filled[:, None]
        return has_four(self.own[:, None] | cells) & self.list_legal()

    def is_lost(self) -> NDArray[np.bool_]:
        """Return in which games the opponent has four stones connected, shape (N,)."""
        return has_four(self.own ^ self.filled)

    def is_drawn(self) -> NDArray[np.bool_]:
        """Return which boards are full without four connected stones by the opponent, shape (N,)."""
        is_full: NDArray[np.bool_] = self.filled == _FULL
        return is_full & ~self.is_lost()


def has_four(stones: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which bitboards have four connected stones."""
    found = np.zeros(stones.shape, bool)
    for step in _STEPS:
        pairs = stones & (stones >> step)
        found |= (pairs & (pairs >> (step + step))) != 0
    return found
