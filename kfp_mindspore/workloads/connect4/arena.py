"""The pipeline's gate: games by an exported player against a random and a one-ply player."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from kfp_mindspore.mindir import ModelRunner
from kfp_mindspore.workloads.connect4.game import Positions
from kfp_mindspore.workloads.connect4.players import one_ply_player, play_match, random_player, search_player

if TYPE_CHECKING:
    from kfp_mindspore.workloads.connect4.players import Player
    from numpy.typing import NDArray


def play_arena(runner: ModelRunner, games: int = 100, simulations: int = 32, seed: int = 0) -> dict[str, float]:
    """Return the fractions of games won, half as the first player; a draw is no win.

    Args:
        runner: The exported `Player`.
        games: Games against each opponent.
        simulations: The search's simulations for each move.
        seed: Opponent seed.

    Returns:
        `win_rate`, the served move's lowest rate; then for each opponent the rates for the served move, the most
        probable column (`policy`), and a search with the network's policy and value (`search`).
    """

    def predict(positions: Positions) -> dict[str, NDArray[Any]]:
        return runner.predict({"board": positions.to_boards()})

    def evaluate(boards: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        outputs = runner.predict({"board": boards})
        return outputs["policy"], outputs["value"]

    players: dict[str, Player] = {
        "served": lambda positions: predict(positions)["move"],
        "policy": lambda positions: predict(positions)["policy"].argmax(1),
        "search": search_player(evaluate, simulations),
    }
    opponents = {"random": random_player, "one_ply": one_ply_player}
    rates = {
        f"{name}.{opponent}": float((play_match(player, build(seed), games) > 0).mean())
        for name, player in players.items()
        for opponent, build in opponents.items()
    }
    return {"win_rate": min(rates[f"served.{opponent}"] for opponent in opponents), **rates}
