"""The network, built by `train.py` and by the export step."""

from mindspore import Tensor, nn, ops


class Network(nn.Cell):
    """A layer for each input, joined by a third one; returns scores of shape (N, classes).

    The parameters of `construct` have the names of the dataset's inputs; requests have the same names.

    Args:
        size: Number of values in the input `size`.
        shape: Number of values in the input `shape`.
        classes: Number of classes.
        hidden: Width of the layers.
    """

    def __init__(self, size: int, shape: int, classes: int, hidden: int = 16) -> None:
        super().__init__()
        self.size_layer = nn.SequentialCell(nn.Dense(size, hidden), nn.ReLU())
        self.shape_layer = nn.SequentialCell(nn.Dense(shape, hidden), nn.ReLU())
        self.scores = nn.Dense(2 * hidden, classes)

    def construct(self, size: Tensor, shape: Tensor) -> Tensor:
        """Return the scores."""
        return self.scores(ops.cat((self.size_layer(size), self.shape_layer(shape)), axis=1))
