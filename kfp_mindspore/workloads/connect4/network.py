"""The policy and value network, and the player that is served."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from numpy.typing import NDArray

ROWS, COLUMNS = 6, 7


def list_lines() -> NDArray[np.float32]:
    """Return the 69 four-cell lines, float32 with shape (42, 69): 1 for each cell in a line."""
    lines = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + step * down, column + step * right) for step in range(4)]
                if cells[-1][0] < ROWS and 0 <= cells[-1][1] < COLUMNS:
                    line = np.zeros((ROWS, COLUMNS), np.float32)
                    line[tuple(zip(*cells, strict=True))] = 1
                    lines.append(line.ravel())
    return np.stack(lines, axis=1)


class Network(nn.Cell):
    """Policy and value of boards with shape (N, 6, 7), top row first: 1 the player to move, -1 the opponent, 0 empty.

    The first layer gets the stones, and for each four-cell line how many stones a player has in it, if the other has
    none.

    Args:
        hidden: The hidden layers' width.
    """

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.lines = Tensor(list_lines())
        features = 2 * ROWS * COLUMNS + 6 * self.lines.shape[1]
        self.layers = nn.SequentialCell(nn.Dense(features, hidden), nn.ReLU(), nn.Dense(hidden, hidden), nn.ReLU())
        self.policy = nn.Dense(hidden, COLUMNS)
        self.value = nn.SequentialCell(nn.Dense(hidden, hidden // 2), nn.ReLU(), nn.Dense(hidden // 2, 1), nn.Tanh())

    def construct(self, board: Tensor) -> dict[str, Tensor]:
        """Return the columns' scores, (N, 7), and the value for the player to move, -1 to 1, (N,)."""
        own = ops.reshape(ops.relu(board), (-1, ROWS * COLUMNS))
        other = ops.reshape(ops.relu(-board), (-1, ROWS * COLUMNS))
        mine, theirs = ops.matmul(own, self.lines), ops.matmul(other, self.lines)
        features = [own, other]
        for count in (mine - 4 * theirs, theirs - 4 * mine):
            features += [ops.relu(count), ops.relu(count - 1), ops.relu(count - 2)]
        hidden = self.layers(ops.concat(features, 1))
        return {"policy": self.policy(hidden), "value": ops.reshape(self.value(hidden), (-1,))}


class Player(Network):
    """The network with a player's move, a legal column in each position in an unfinished game.

    The move is the most probable column; a column that wins comes first, one after which the opponent can win at once
    comes last.

    Args:
        hidden: The hidden layers' width.
    """

    def __init__(self, hidden: int = 128) -> None:
        super().__init__(hidden)
        self.columns = Tensor(np.eye(COLUMNS, dtype=np.float32)[:, None])

    def construct(self, board: Tensor) -> dict[str, Tensor]:
        """Return the move, int32 (N,), the legal columns' probabilities, (N, 7), and the value, (N,)."""
        outputs = super().construct(board)
        after, legal = self.drop(board)
        replies, _ = self.drop(ops.reshape(-after, (-1, ROWS, COLUMNS)))
        wins = self.has_four(after)
        loses = ops.amax(ops.reshape(self.has_four(replies), (-1, COLUMNS, COLUMNS)), 2)
        policy = ops.softmax(outputs["policy"] - 1e4 * (1 - legal), 1)
        move = ops.argmax(policy + 2 * wins - loses - 4 * (1 - legal), 1)
        return {"move": ops.cast(move, mstype.int32), "policy": policy, "value": outputs["value"]}

    def drop(self, board: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boards after a stone in each column, (N, 7, 6, 7), and which columns are legal: 1 or 0, (N, 7)."""
        stones = ops.abs(board)
        below = ops.concat((stones[:, 1:], ops.ones_like(stones[:, :1])), 1)
        cells = (1 - stones) * below
        return ops.expand_dims(board, 1) + ops.expand_dims(cells, 1) * self.columns, ops.sum(cells, 1)

    def has_four(self, boards: Tensor) -> Tensor:
        """Return which boards have four connected stones for the player to move: 1 or 0, (N, 7)."""
        counts = ops.matmul(ops.reshape(boards, (-1, ROWS * COLUMNS)), self.lines)
        return ops.reshape(ops.relu(ops.amax(counts, 1) - 3), (-1, COLUMNS))
