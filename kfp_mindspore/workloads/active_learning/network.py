"""The workload's network: two hidden layers, small enough to train on a few dozen labels."""

from __future__ import annotations

from mindspore import Tensor, nn


class Classifier(nn.Cell):
    """Two hidden layers for flattened features; returns logits with shape (N, classes).

    Args:
        features: Features per sample.
        classes: Class count.
        hidden: The hidden layers' width.
    """

    def __init__(self, features: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Flatten(),
            nn.Dense(features, hidden, weight_init="HeUniform"),
            nn.ReLU(),
            nn.Dense(hidden, hidden, weight_init="HeUniform"),
            nn.ReLU(),
            nn.Dense(hidden, classes, weight_init="HeUniform"),
        )

    def construct(self, features: Tensor) -> Tensor:
        """Return the logits."""
        return self.layers(features)
