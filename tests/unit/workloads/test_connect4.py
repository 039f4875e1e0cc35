"""Connect-4: the rules, the players, the search, self-play, and the player that is served."""

from __future__ import annotations

import numpy as np
import pytest

from kfp_mindspore.workloads.connect4.game import COLUMNS, Positions
from kfp_mindspore.workloads.connect4.players import one_ply_player, play_match, random_player, search_player
from kfp_mindspore.workloads.connect4.search import search
from kfp_mindspore.workloads.connect4.self_play import SelfPlay, mirror, split

# A full board without a line of four.
DRAWN = """
    oxoxoxo
    oxoxoxo
    xoxoxox
    xoxoxox
    oxoxoxo
    oxoxoxo
"""


def parse(*boards: str) -> np.ndarray:
    """Return boards of texts: `x` the player to move, `o` the opponent, rows above the text are empty."""
    arrays = np.zeros((len(boards), 6, 7), np.float32)
    for array, board in zip(arrays, boards, strict=True):
        rows = [[{"x": 1, "o": -1, ".": 0}[cell] for cell in row] for row in board.split()]
        array[6 - len(rows) :] = rows
    return arrays


def play(*columns: int) -> Positions:
    """Return the position after moves from an empty board."""
    positions = Positions.start(1)
    for column in columns:
        positions = positions.play(np.array([column]))
    return positions


def evaluate_uniformly(boards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return equal probabilities, and values of 0: the search knows only the rules."""
    return np.full((len(boards), COLUMNS), 1 / COLUMNS, np.float32), np.zeros(len(boards), np.float32)


@pytest.mark.parametrize(
    ("moves", "last"),
    [
        ((3, 3, 4, 4, 5, 5), 2),
        ((3, 3, 4, 4, 5, 5), 6),
        ((0, 1, 0, 1, 0, 1), 0),
        ((0, 1, 1, 2, 2, 3, 2, 3, 3, 6), 3),
        ((6, 5, 5, 4, 4, 3, 4, 3, 3, 0), 3),
    ],
    ids=["horizontal left", "horizontal right", "vertical", "diagonal up", "diagonal down"],
)
def test_four_stones_in_line_win(moves, last) -> None:
    before = play(*moves)
    assert not before.is_lost()
    assert before.list_wins()[0, last]
    assert play(*moves, last).is_lost()


def test_lines_do_not_continue_in_next_column() -> None:
    # Neighbours in a bitboard without a spare bit: three stones on top of column 0, one at the bottom of column 1.
    top = parse("x...... x...... x...... o...... o...... ox.....")
    assert not Positions.from_boards(-top).is_lost()


def test_full_column_is_illegal_and_full_board_is_drawn() -> None:
    assert play(2, 2, 2, 2, 2, 2).list_legal().tolist() == [[True, True, False, True, True, True, True]]
    drawn = Positions.from_boards(parse(DRAWN))
    assert drawn.is_drawn()
    assert not drawn.is_lost()
    assert not drawn.list_legal().any()
    assert not drawn.list_wins().any()
    assert not play(3).is_drawn()


def test_boards_are_those_of_player_to_move() -> None:
    positions = play(3, 3, 4)
    expected = parse("...x... ...oo..")
    assert np.array_equal(positions.to_boards(), expected)
    restored = Positions.from_boards(expected.astype(np.int8))
    assert (restored.own, restored.filled) == (positions.own, positions.filled)
    assert np.array_equal(positions.switch().to_boards(), -expected)


@pytest.mark.parametrize(
    ("board", "columns"),
    [
        (".ooo... .xxx...", {0, 4}),
        ("x...... x...... xo.ooo.", {0}),
        (".....o. xx.ooo.", {2, 6}),
        ("x..x... o..o...", {0, 1, 2, 3, 4, 5, 6}),
    ],
    ids=["wins rather than blocks", "wins in a column", "blocks", "random"],
)
def test_one_ply_player_wins_then_blocks_then_plays_at_random(board, columns) -> None:
    positions = Positions.from_boards(np.repeat(parse(board), 200, axis=0))
    assert set(one_ply_player(0)(positions).tolist()) == columns


def test_random_player_plays_all_legal_columns() -> None:
    positions = Positions.from_boards(np.repeat(parse("o......" + " x...... o......" * 2 + " x......"), 200, axis=0))
    assert set(random_player(0)(positions).tolist()) == {1, 2, 3, 4, 5, 6}


def test_match_counts_wins_of_both_halves() -> None:
    results = play_match(one_ply_player(1), random_player(2), 200)
    reverse = play_match(random_player(2), one_ply_player(1), 200)
    assert (results[:100] > 0).mean() > 0.8
    assert (results[100:] > 0).mean() > 0.7
    assert (reverse < 0).mean() > 0.75
    with pytest.raises(ValueError, match="full column"):
        play_match(lambda positions: np.zeros(len(positions), np.int64), random_player(0), 20)


@pytest.mark.parametrize(
    ("board", "columns"),
    [
        ("x...... xo..... xo..... oo..xo.", {0}),
        ("o...... o...... o.xxx..", {1, 5}),
        ("..o.... ..xxx.o ooxoo.x", {1}),
        ("...o... x..o... x..o...", {3}),
        ("..oo... ..xx...", {1, 4}),
        ("...x... ..oo...", {1, 4}),
    ],
    ids=["wins", "wins rather than blocks", "wins above", "blocks", "makes two threats", "prevents two threats"],
)
def test_search_finds_forced_moves_by_rules_alone(board, columns) -> None:
    (visits,) = search(Positions.from_boards(parse(board)), evaluate_uniformly, 1000)
    assert visits.sum() == 1000
    assert int(visits.argmax()) in columns


def test_search_visits_legal_columns_only_and_games_do_not_mix() -> None:
    boards = parse(
        "o...... x...... o...... x...... o...... x......", "x..o... x..o... x..o...", DRAWN.replace("o", ".", 1)
    )
    together = search(Positions.from_boards(boards), evaluate_uniformly, 50)
    assert together[0, 0] == 0
    assert together[2].tolist() == [50, 0, 0, 0, 0, 0, 0]
    alone = np.concatenate([search(Positions.from_boards(board[None]), evaluate_uniformly, 50) for board in boards])
    assert np.array_equal(together, alone)


def test_noise_changes_visits_of_self_play() -> None:
    positions = Positions.start(20)
    plain = search(positions, evaluate_uniformly, 30)
    noisy = search(positions, evaluate_uniformly, 30, np.random.default_rng(0))
    assert len(np.unique(plain, axis=0)) == 1
    assert len(np.unique(noisy, axis=0)) > 10


def test_search_by_rules_alone_beats_random_player() -> None:
    results = play_match(search_player(evaluate_uniformly, 60), random_player(0), 20)
    assert (results > 0).mean() >= 0.8


def test_self_play_returns_whole_games_with_their_results() -> None:
    games = SelfPlay(8, 16, seed=3)
    first = games.play(evaluate_uniformly, 30)
    samples = np.concatenate([first, games.play(evaluate_uniformly, 30)])
    boards, policies, values = split(samples)
    assert np.allclose(policies.sum(1), 1)
    assert set(values.tolist()) <= {-1, 0, 1}
    begins = np.flatnonzero(~boards.any(axis=(1, 2)))
    assert begins[0] == 0
    assert len(begins) > 8
    for game in np.split(np.arange(len(samples)), begins[1:]):
        assert np.abs(boards[game]).sum((1, 2)).tolist() == list(range(len(game)))
        # The player of the last sample has won, or the game was drawn.
        assert values[game[-1]] in (0, 1)
        assert np.array_equal(values[game][1:], -values[game][:-1])
        last = Positions.from_boards(boards[game[-1:]])
        assert values[game[-1]] == (1 if last.list_wins().any() else 0)
    repeated = SelfPlay(8, 16, seed=3)
    assert np.array_equal(first, repeated.play(evaluate_uniformly, 30))


def test_mirrored_samples_are_added() -> None:
    samples = np.zeros((1, 50), np.float32)
    samples[0, [0, 42, 49]] = 1
    boards, policies, values = split(mirror(samples))
    assert np.argwhere(boards).tolist() == [[0, 0, 0], [1, 0, 6]]
    assert (policies.argmax(1).tolist(), values.tolist()) == ([0, 6], [1, 1])


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
