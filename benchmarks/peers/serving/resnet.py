"""ResNet-18 for images of 3×32×32, a quarter as wide: a 3×3 first convolution, no pooling, four stages of two blocks.

Kaiming He et al., Deep Residual Learning for Image Recognition, https://arxiv.org/abs/1512.03385
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

WIDTH = 16
STAGES = ((WIDTH, 1), (2 * WIDTH, 2), (4 * WIDTH, 2), (8 * WIDTH, 2))


class Block(nn.Cell):  # type: ignore[misc]
    """Two 3×3 convolutions beside a shortcut.

    Args:
        inputs: Number of maps that come in.
        outputs: Number of maps that go out.
        stride: Of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.SequentialCell(
            nn.Conv2d(inputs, outputs, 3, stride=stride, pad_mode="pad", padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, pad_mode="pad", padding=1),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.SequentialCell()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.SequentialCell(nn.Conv2d(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))

    def construct(self, maps: Tensor) -> Tensor:
        """Return the maps after the block."""
        return ops.relu(self.residual(maps) + self.shortcut(maps))


class ResNet18(nn.Cell):  # type: ignore[misc]
    """Takes float32 of shape (N, 3, 32, 32), gives logits of shape (N, classes).

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, STAGES[0][0], 3, pad_mode="pad", padding=1), nn.BatchNorm2d(STAGES[0][0]), nn.ReLU()]
        inputs = STAGES[0][0]
        for outputs, stride in STAGES:
            layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.SequentialCell(*layers)
        self.classifier = nn.Dense(inputs, classes)

    def construct(self, image: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.stages(image).mean((2, 3)))
