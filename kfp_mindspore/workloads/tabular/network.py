"""The network, built by `train.py` and by the export step."""

import mindspore
from mindspore import Tensor, nn


class Network(nn.Cell):
    """A linear layer beside a hidden one, for features (N, …); returns scores or numbers with shape (N, outputs).

    The linear layer alone is linear or logistic regression. The hidden one starts without effect and adds what is not
    linear.

    Args:
        inputs: Values in one sample.
        outputs: How many classes, or numbers to predict; a single number has the shape (N,).
        hidden: The hidden layer's width.
        mean: The predicted numbers' mean: the layers compute how many deviations they are from it.
        std: Their standard deviation.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int = 32,
        mean: float | list[float] = 0.0,
        std: float | list[float] = 1.0,
    ) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear = nn.Dense(inputs, outputs, weight_init="zeros")
        self.hidden = nn.SequentialCell(
            nn.Dense(inputs, hidden), nn.Tanh(), nn.Dense(hidden, outputs, weight_init="zeros")
        )
        self.mean, self.std = Tensor(mean, mindspore.float32), Tensor(std, mindspore.float32)
        self.is_single = outputs == 1

    def construct(self, features: Tensor) -> Tensor:
        """Return the scores or numbers."""
        flat = self.flatten(features)
        linear = self.linear(flat)
        computed = linear + self.hidden(flat)
        return self.mean + self.std * (computed[:, 0] if self.is_single else computed)
