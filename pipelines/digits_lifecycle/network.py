"""LeNet-5 for the 8×8 images of scikit-learn's digits.

What was adapted from the network for 32×32 images: the kernels are 3×3 with padding instead of 5×5 without (8×8 would
shrink to nothing), ReLU and max pooling take the place of the scaled tanh and the trainable average pooling, and the
output layer is a plain dense one. Six and sixteen maps and dense layers of 120, 84 and 10 are LeNet-5's own, times
`width`.
"""

from __future__ import annotations

from mindspore import Tensor, nn


class LeNet5(nn.Cell):  # type: ignore[misc]
    """LeNet-5 for images of shape (N, 1, 8, 8), float32 in 0..1; gives logits of shape (N, classes).

    Args:
        classes: Number of classes.
        width: Factor on the number of maps of both convolutions.
    """

    def __init__(self, classes: int = 10, width: int = 1) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 6 * width, 3, pad_mode="same", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6 * width, 16 * width, 3, pad_mode="same", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Flatten(),
        )
        self.classifier = nn.SequentialCell(
            nn.Dense(16 * width * 2 * 2, 120),
            nn.ReLU(),
            nn.Dense(120, 84),
            nn.ReLU(),
            nn.Dense(84, classes),
        )

    def construct(self, image: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.features(image))
