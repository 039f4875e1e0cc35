"""Players, and matches between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from kfp_mindspore.workloads.connect4.game import Positions
from kfp_mindspore.workloads.connect4.search import search

if TYPE_CHECKING:
    from kfp_mindspore.workloads.connect4.search import Evaluate
    from numpy.typing import NDArray

    # From positions in unfinished games to a column for each.
    Player = Callable[[Positions], NDArray[np.int64]]


def random_player(seed: int) -> Player:
    """Return a player that chooses a legal column at random."""
    random = np.random.default_rng(seed)
    return lambda positions: _draw(positions.list_legal(), random)


def one_ply_player(seed: int) -> Player:
    """Return a player that wins if it can, else blocks a direct loss, else chooses a legal column at random."""
    random = np.random.default_rng(seed)

    def choose(positions: Positions) -> NDArray[np.int64]:
        columns = positions.list_legal()
        for preferred in (positions.switch().list_wins(), positions.list_wins()):
            columns = np.where(preferred.any(1, keepdims=True), preferred, columns)
        return _draw(columns, random)

    return choose


def search_player(evaluate: Evaluate, simulations: int) -> Player:
    """Return a player that chooses the column that a search visits most."""
    return lambda positions: search(positions, evaluate, simulations).argmax(1)


def play_match(player: Player, opponent: Player, games: int) -> NDArray[np.int64]:
    """Play games, and let `player` begin the first half.

    Returns:
        Each game's result for `player`: 1 won, 0 drawn, -1 lost.

    Raises:
        ValueError: A player chose a full column.
    """
    results = np.zeros(games, np.int64)
    running, positions = np.arange(games), Positions.start(games)
    is_turn = running < games // 2
    while len(running):
        columns = np.zeros(len(running), np.int64)
        for mover, chosen in ((player, is_turn), (opponent, ~is_turn)):
            if chosen.any():
                columns[chosen] = mover(positions[chosen])
        if not np.take_along_axis(positions.list_legal(), columns[:, None], 1).all():
            raise ValueError("a player chose a full column")
        positions = positions.play(columns)
        lost = positions.is_lost()
        results[running[lost]] = np.where(is_turn[lost], 1, -1)
        going = ~(lost | positions.is_drawn())
        running, positions, is_turn = running[going], positions[going], ~is_turn[going]
    return results


def _draw(columns: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw one column among those that are true, shape (N, 7), for each position."""
    drawn: NDArray[np.int64] = (columns * random.uniform(0.5, 1, columns.shape)).argmax(1)
    return drawn
