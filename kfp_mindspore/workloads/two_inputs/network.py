"""The network, built by `train.py` and by the export step."""

from mindspore import Tensor, nn, ops


class Network(nn.Cell):
    """A layer for each input, joined by a third one; returns scores with shape (N, classes).

    `construct`'s parameters have the dataset's input names; requests have the same names.

    Args:
        size: Values in the input `size`.
        shape: Values in the input `shape`.
        classes: Class count.
        hidden: Layer width.
    """

    def __init__(self, size: int, shape: int, classes: int, hidden: int = 16) -> None:
        super().__init__()
        self.size_layer = nn.SequentialCell(nn.Dense(size, hidden), nn.ReLU())
        self.shape_layer = nn.SequentialCell(nn.Dense(shape, hidden), nn.ReLU())
        self.scores = nn.Dense(2 * hidden, classes)

    def construct(self, size: Tensor, shape: Tensor) -> Tensor:
        """Return the scores."""
        return self.scores(ops.cat((self.size_layer(size), self.shape_layer(shape)), axis=1))
