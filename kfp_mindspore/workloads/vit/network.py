"""A Vision Transformer (Dosovitskiy et al., 2021, arXiv:2010.11929), built by `train.py` and by the export step."""

import math
from itertools import pairwise

from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


class Attention(nn.Cell):
    """Multi-head self-attention over tokens with shape (N, T, width).

    Args:
        width: Token width, divisible by `heads`.
        heads: Head count.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.project = nn.Dense(width, 3 * width, weight_init="XavierUniform")
        self.output = nn.Dense(width, width, weight_init="XavierUniform")

    def construct(self, tokens: Tensor) -> Tensor:
        """Return the attended values."""
        count = tokens.shape[1]
        # (N, T, 3, heads, size) to (3, N, heads, T, size).
        parts = self.project(tokens).reshape(-1, count, 3, self.heads, self.size).transpose(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        weights = ops.softmax(ops.matmul(query, key.swapaxes(-1, -2)) * self.size**-0.5, axis=-1)
        return self.output(ops.matmul(weights, value).swapaxes(1, 2).reshape(-1, count, self.heads * self.size))


class Block(nn.Cell):
    """One encoder layer: attention and a two-layer network, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.SequentialCell(nn.LayerNorm((width,), epsilon=1e-6), Attention(width, heads))
        self.dense = nn.SequentialCell(
            nn.LayerNorm((width,), epsilon=1e-6),
            nn.Dense(width, 2 * width, weight_init="XavierUniform"),
            nn.GELU(),
            nn.Dense(2 * width, width, weight_init="XavierUniform"),
        )

    def construct(self, tokens: Tensor) -> Tensor:
        """Return the next layer's tokens."""
        tokens = tokens + self.attention(tokens)
        return tokens + self.dense(tokens)


class Network(nn.Cell):
    """An image's patches as tokens, an encoder, and the class by the mean over its outputs.

    Three convolutions with stride 2 embed overlapping patches: on little data they learn faster than one projection on
    separate patches (Xiao et al., 2021, arXiv:2106.14881).

    Args:
        size: Image height and width.
        classes: Class count.
        channels: Channels per image.
        width: Token width.
        depth: Layer count.
        heads: Heads per layer.
    """

    def __init__(
        self, size: int, classes: int, channels: int = 1, width: int = 64, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.width, self.count = width, math.ceil(size / 8) ** 2
        widths = (channels, width // 2, width, width)
        layers = [build_convolution(*pair) for pair in pairwise(widths)]
        self.embed = nn.SequentialCell(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self.positions = Parameter(initializer(Normal(0.02), (1, self.count, width)), name="positions")
        self.encoder = nn.SequentialCell(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-6)
        self.classifier = nn.Dense(width, classes)

    def construct(self, image: Tensor) -> Tensor:
        """Return the scores for images with shape (N, channels, size, size), shape (N, classes)."""
        patches = self.embed(image)  # (N, width, rows, columns)
        tokens = patches.reshape(-1, self.width, self.count).swapaxes(1, 2) + self.positions
        return self.classifier(self.norm(self.encoder(tokens)).mean(axis=1))


def build_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a convolution that halves height and width."""
    return nn.Conv2d(inputs, outputs, 3, 2, pad_mode="same", has_bias=True, weight_init="HeUniform", bias_init="zeros")
