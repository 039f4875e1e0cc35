"""LeNet-5 for the 8×8 images in scikit-learn's digits.

Changes to the network for 32×32 images: 3×3 kernels with padding instead of 5×5 without, one pooling layer instead of
two (8×8 pixels are too small for two), ReLU and max pooling instead of scaled tanh and trainable averages, and a dense
output layer. Six and sixteen feature maps and dense layers with 120, 84 and `classes` units are LeNet-5's. With He
initialisation the accuracy depends less on the seed than with MindSpore's default.
"""

from __future__ import annotations

from mindspore import Tensor, nn


class LeNet5(nn.Cell):
    """LeNet-5 for images with shape (N, 1, 8, 8), float32 in 0..1; returns logits with shape (N, classes).

    Args:
        classes: Class count.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            _build_convolution(1, 6),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
            _build_convolution(6, 16),
            nn.ReLU(),
        )
        self.classifier = nn.SequentialCell(
            nn.Flatten(),
            _build_dense(16 * 4 * 4, 120),
            nn.ReLU(),
            _build_dense(120, 84),
            nn.ReLU(),
            _build_dense(84, classes),
        )

    def construct(self, image: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.features(image))


def _build_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(
        inputs, outputs, kernel_size=3, pad_mode="same", has_bias=True, weight_init="HeUniform", bias_init="zeros"
    )


def _build_dense(inputs: int, outputs: int) -> nn.Dense:
    return nn.Dense(inputs, outputs, weight_init="HeUniform", bias_init="zeros")
