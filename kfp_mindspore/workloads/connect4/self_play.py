"""Games by the network against itself: a search chooses the moves, and its visits and the results are the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from kfp_mindspore.workloads.connect4.game import COLUMNS, ROWS, Positions
from kfp_mindspore.workloads.connect4.search import search

if TYPE_CHECKING:
    from kfp_mindspore.workloads.connect4.search import Evaluate
    from numpy.typing import NDArray

CELLS = ROWS * COLUMNS
# A sample is a row: the board, each column's visit fraction, and the result for the player to move.
WIDTH = CELLS + COLUMNS + 1
# With fewer stones the columns are drawn by their visits; afterwards the most visited one is played.
_DRAWN_MOVES = 12


class SelfPlay:
    """Games in progress; a finished one is replaced by a new one.

    Args:
        games: Games played at once.
        simulations: The search's simulations for each move.
        seed: Seed for the noise and for choosing columns, one number or several.
    """

    def __init__(self, games: int, simulations: int, seed: int | Sequence[int]) -> None:
        self._simulations = simulations
        self._random = np.random.default_rng(seed)
        self._positions = Positions.start(games)
        self._samples = np.zeros((games, CELLS, WIDTH), np.float32)
        self._moves = np.zeros(games, np.int64)

    def play(self, evaluate: Evaluate, moves: int) -> NDArray[np.float32]:
        """Play moves in each game.

        Args:
            evaluate: The network.
            moves: Moves per game.

        Returns:
            The samples from finished games, shape (N, WIDTH).
        """
        finished = [np.zeros((0, WIDTH), np.float32)]
        games = np.arange(len(self._moves))
        for _ in range(moves):
            visits = search(self._positions, evaluate, self._simulations, self._random)
            policy = visits / visits.sum(1, keepdims=True, dtype=np.float64)
            boards = self._positions.to_boards().reshape(-1, CELLS)
            self._samples[games, self._moves, :-1] = np.hstack([boards, policy])
            drawn = self._random.multinomial(1, policy).argmax(1)
            self._positions = self._positions.play(np.where(self._moves < _DRAWN_MOVES, drawn, policy.argmax(1)))
            self._moves += 1
            finished += self._finish()
        return np.concatenate(finished)

    def _finish(self) -> list[NDArray[np.float32]]:
        """Start new games in place of the finished ones, and return the finished games' samples."""
        lost = self._positions.is_lost()
        finished = []
        for game in np.flatnonzero(lost | self._positions.is_drawn()):
            samples = self._samples[game, : self._moves[game]].copy()
            # The player who moved last has won: 1, -1, 1, … from the last sample back.
            samples[::-1, -1] = lost[game] * (1 - 2 * (np.arange(len(samples)) % 2))
            finished.append(samples)
            self._positions.own[game] = self._positions.filled[game] = 0
            self._moves[game] = 0
        return finished


def mirror(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the samples and their mirror images."""
    boards, policies, values = split(samples)
    mirrored = np.hstack([boards[:, :, ::-1].reshape(-1, CELLS), policies[:, ::-1], values[:, None]])
    return np.concatenate([samples, mirrored])


def split(samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the boards, (N, 6, 7), the policies, (N, 7), and the values, (N,), from samples."""
    return samples[:, :CELLS].reshape(-1, ROWS, COLUMNS), samples[:, CELLS:-1], samples[:, -1]
