"""The network, built by `train.py` and by the export step."""

from mindspore import Tensor, nn


class Network(nn.Cell):
    """Two hidden layers over features of any shape (N, …); returns scores of shape (N, classes).

    Args:
        inputs: Number of values in one sample.
        classes: Number of classes.
        hidden: Width of the hidden layers.
    """

    def __init__(self, inputs: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Flatten(),
            nn.Dense(inputs, hidden),
            nn.ReLU(),
            nn.Dense(hidden, hidden),
            nn.ReLU(),
            nn.Dense(hidden, classes),
        )

    def construct(self, features: Tensor) -> Tensor:
        """Return the scores."""
        return self.layers(features)
