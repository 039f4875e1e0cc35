"""Connect-4: the player that is served."""

from __future__ import annotations

import numpy as np
import pytest

from kfp_mindspore.workloads.connect4.game import COLUMNS, Positions
from kfp_mindspore.workloads.connect4.players import random_player


@pytest.mark.mindspore
def test_served_move_is_legal_wins_at_once_and_avoids_direct_loss() -> None:
    import mindspore

    from kfp_mindspore.mindir.environment import use_graph_mode
    from kfp_mindspore.workloads.connect4.network import Player

    random, positions, found = np.random.default_rng(5), Positions.start(300), []
    for _ in range(30):
        positions = positions.play(random_player(int(random.integers(1000)))(positions))
        positions = positions[~(positions.is_lost() | positions.is_drawn())]
        found.append(positions.to_boards())
    boards = np.concatenate(found)[::11]
    mindspore.set_seed(0)
    with use_graph_mode():
        outputs = {name: array.asnumpy() for name, array in Player()(mindspore.Tensor(boards)).items()}
    positions, move = Positions.from_boards(boards), outputs["move"]
    chosen, legal, wins = np.eye(COLUMNS, dtype=bool)[move], positions.list_legal(), positions.list_wins()
    assert (outputs["move"].dtype, outputs["policy"].shape, outputs["value"].shape) == (
        np.int32,
        (len(boards), 7),
        move.shape,
    )
    assert legal[chosen].all()
    assert np.allclose((outputs["policy"] * legal).sum(1), 1)
    must_win = wins.any(1)
    assert must_win.sum() > 20
    assert wins[chosen][must_win].all()
    safe = (
        np.stack([~positions.play(np.full(len(boards), column)).list_wins().any(1) for column in range(COLUMNS)], 1)
        & legal
    )
    can_save = ~must_win & safe.any(1) & (safe != legal).any(1)
    assert can_save.sum() > 20
    assert safe[chosen][can_save].all()
    free = ~must_win & (safe == legal).all(1)
    assert free.sum() > 20
    assert np.array_equal(move[free], outputs["policy"].argmax(1)[free])
