"""Monte Carlo tree search with the network's policy and value, for many games at once.

PUCT as in AlphaZero (https://arxiv.org/abs/1712.01815). Each simulation adds a position to each game's tree, and the
network evaluates all games' new positions as one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from kfp_mindspore.workloads.connect4.game import COLUMNS, Positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # Boards (N, 6, 7) to the columns' probabilities (N, 7) and the values for the player to move, -1 to 1, (N,).
    Evaluate = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.float32]]]

EXPLORATION = 1.5
# The noise's fraction in the root's priors, and the Dirichlet distribution's concentration.
NOISE, CONCENTRATION = 0.25, 1.0


class Trees:
    """One search tree per game, for G games.

    Attributes:
        visits: Visit count by game, position and column, shape (G, simulations + 1, 7); position 0 is the root.

    Args:
        positions: The roots, positions in unfinished games.
        evaluate: The network.
        simulations: Simulations that memory is allocated for.
    """

    def __init__(self, positions: Positions, evaluate: Evaluate, simulations: int) -> None:
        nodes = (len(positions), simulations + 1)
        self._evaluate = evaluate
        self._games = np.arange(len(positions))
        self._nodes = 0
        self._own, self._filled = np.zeros(nodes, np.uint64), np.zeros(nodes, np.uint64)
        self._is_over = np.zeros(nodes, bool)
        self._prior = np.zeros((*nodes, COLUMNS), np.float32)
        self._child = np.zeros((*nodes, COLUMNS), np.int64)
        self._total = np.zeros((*nodes, COLUMNS), np.float32)
        self.visits = np.zeros((*nodes, COLUMNS), np.float32)
        self._add(positions)

    def add_noise(self, random: np.random.Generator) -> None:
        """Mix Dirichlet noise into the roots' priors."""
        prior = self._prior[:, 0]
        noise = random.gamma(CONCENTRATION, size=prior.shape) * (prior > 0)
        self._prior[:, 0] = (1 - NOISE) * prior + NOISE * noise / noise.sum(1, keepdims=True)

    def simulate(self) -> None:
        """Descend from each root to a new position or a game's end, and add its value to the columns on the path.

        Each path's last position is stored as a node in any case, so that all batches have the same size. A game that
        is over keeps its first node.
        """
        path = []
        games, node = self._games, np.zeros(len(self._games), np.int64)
        leaf, last = node.copy(), node.copy()
        while len(games):
            column = self._select(games, node)
            path.append((games, node, column))
            leaf[games], last[games] = node, column
            child = self._child[games, node, column]
            inner = (child > 0) & ~self._is_over[games, child]
            games, node = games[inner], child[inner]
        child = self._child[self._games, leaf, last]
        self._child[self._games, leaf, last] = np.where(child > 0, child, self._nodes)
        values = self._add(Positions(self._own[self._games, leaf], self._filled[self._games, leaf]).play(last))
        for games, node, column in reversed(path):
            # A position's value is for its player to move: the opponent of the player before.
            values[games] *= -1
            self._total[games, node, column] += values[games]
            self.visits[games, node, column] += 1

    def _add(self, positions: Positions) -> NDArray[np.float32]:
        """Store a node for each game, and return the values for the players to move."""
        node, self._nodes = self._nodes, self._nodes + 1
        probabilities, values = self._evaluate(positions.to_boards())
        lost, drawn = positions.is_lost(), positions.is_drawn()
        # No legal column has the prior 0, whatever the network computes.
        prior = (probabilities + 1e-6) * positions.list_legal()
        self._own[:, node], self._filled[:, node] = positions.own, positions.filled
        self._prior[:, node] = prior / np.maximum(prior.sum(1, keepdims=True), 1e-6)
        self._is_over[:, node] = lost | drawn
        return np.where(lost, np.float32(-1), np.where(drawn, np.float32(0), values))

    def _select(self, games: NDArray[np.int64], node: NDArray[np.int64]) -> NDArray[np.int64]:
        visits, prior = self.visits[games, node], self._prior[games, node]
        quality = self._total[games, node] / np.maximum(visits, 1)
        bonus = EXPLORATION * prior * np.sqrt(1 + visits.sum(1, keepdims=True)) / (1 + visits)
        columns: NDArray[np.int64] = np.where(prior > 0, quality + bonus, -np.inf).argmax(1)
        return columns


def search(
    positions: Positions, evaluate: Evaluate, simulations: int, noise: np.random.Generator | None = None
) -> NDArray[np.float32]:
    """Return how often each column was visited, shape (N, 7).

    Args:
        positions: Positions in unfinished games.
        evaluate: The network.
        simulations: Simulations for each position.
        noise: Generator for the noise that self-play adds at the root; None without noise.
    """
    trees = Trees(positions, evaluate, simulations)
    if noise is not None:
        trees.add_noise(noise)
    for _ in range(simulations):
        trees.simulate()
    return trees.visits[:, 0]
