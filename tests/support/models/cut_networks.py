"""Networks whose layers share channels in different ways."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import mint, nn, ops


def build_convolution(inputs: int, outputs: int, group: int = 1, *, has_bias: bool = False) -> nn.Conv2d:
    """Return a 3 × 3 convolution that keeps height and width."""
    return nn.Conv2d(inputs, outputs, 3, group=group, has_bias=has_bias)


class Pair(nn.Cell):  # type: ignore[misc]
    """Two dense layers without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(5, 6, has_bias=False), nn.Dense(6, 3, has_bias=False)

    def construct(self, rows: Any) -> Any:
        return self.last(self.first(rows))


class Plain(nn.Cell):  # type: ignore[misc]
    """Two convolutions with BatchNorm, flattened into a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(
            *(build_convolution(1, 6), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2, 2)),
            *(build_convolution(6, 8, has_bias=True), nn.ReLU(), nn.Flatten()),
            *(nn.Dense(8 * 16, 10), nn.ReLU(), nn.Dense(10, 3)),
        )

    def construct(self, image: Any) -> Any:
        return self.layers(image)


class Attention(nn.Cell):  # type: ignore[misc]
    """Attention as textbooks write it, with scores divided by a number, between two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size = 4, 3
        self.embed = nn.Dense(8, 12)
        self.query, self.key, self.value = nn.Dense(12, 12), nn.Dense(12, 12), nn.Dense(12, 12)
        self.project, self.head = nn.Dense(12, 12), nn.Dense(12, 3)

    def divide(self, values: Any) -> Any:
        return values.reshape(-1, 8, self.heads, self.size).swapaxes(1, 2)

    def construct(self, image: Any) -> Any:
        values = self.embed(image.reshape(-1, 8, 8))
        q, k, v = self.divide(self.query(values)), self.divide(self.key(values)), self.divide(self.value(values))
        scores = ops.softmax(q @ k.swapaxes(2, 3) / self.size**0.5)
        found = (scores @ v).swapaxes(1, 2).reshape(-1, 8, self.heads * self.size)
        return self.head(self.project(found).mean(1))


class ElementWise(nn.Cell):  # type: ignore[misc]
    """A row of operators, each with a number as its other operand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 6), nn.Dense(6, 3)

    def construct(self, rows: Any) -> Any:
        values = self.first(rows)
        values = 4 - ((values / 2 * 3 + 1) - 2) % 5 // 2
        values = (2 / values) ** 2 + 2**values
        values = mint.add(mint.sub(mint.mul(mint.div(values, 2.0), 3.0), 1.0, alpha=2), 1.0, alpha=2)
        values = mint.pow(2.0, mint.pow(values, 2.0))
        values = mint.floor_divide(mint.fmod(mint.remainder(values, 4.0), 3.0), 0.5)
        values = mint.remainder(5.0, mint.div(values, 2.0, rounding_mode="floor"))
        values = mint.xlogy(2.0, mint.xlogy(values, 2.0))
        values = mint.where(values > 0.5, mint.clamp(values, -1.0, 1.0), 0.0)
        values = values * (values == 1) * (values < 1) * (values >= 1) * (values <= 1) * (values != 2)
        values = values.masked_fill(values > 3, 0.0)
        return self.second(mint.nn.functional.gelu(mint.lerp(values, values, 0.5)))


class Residual(nn.Cell):  # type: ignore[misc]
    """A residual block between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = build_convolution(1, 6), nn.BatchNorm2d(6)
        self.first, self.second = build_convolution(6, 5), build_convolution(5, 6)
        self.head = nn.Dense(6, 3)

    def construct(self, image: Any) -> Any:
        values = ops.relu(self.norm(self.stem(image)))
        values = values + self.second(ops.relu(self.first(values)))
        return self.head(values.mean((2, 3)))


class Depthwise(nn.Cell):  # type: ignore[misc]
    """A depthwise and a pointwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = build_convolution(1, 6), build_convolution(6, 6, 6)
        self.pointwise = nn.Conv2d(6, 7, 1)
        self.head = nn.Dense(7, 3)

    def construct(self, image: Any) -> Any:
        return self.head(ops.relu(self.pointwise(ops.relu(self.depthwise(self.stem(image))))).mean((2, 3)))


class Concatenated(nn.Cell):  # type: ignore[misc]
    """Two branches joined along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = build_convolution(1, 4), build_convolution(1, 5)
        self.norm, self.mix, self.head = nn.BatchNorm2d(9), build_convolution(9, 6), nn.Dense(6, 3)

    def construct(self, image: Any) -> Any:
        values = self.norm(ops.cat((self.left(image), self.right(image)), 1))
        return self.head(self.mix(ops.relu(values)).mean((2, 3)))


class Gated(nn.Cell):  # type: ignore[misc]
    """Channels that are multiplied by a gate of their mean, as in squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.up = build_convolution(1, 6), nn.Dense(6, 4), nn.Dense(4, 6)
        self.head = nn.Dense(6, 3)

    def construct(self, image: Any) -> Any:
        values = ops.relu(self.stem(image))
        gate = ops.sigmoid(self.up(ops.relu(self.down(values.mean((2, 3))))))
        return self.head((values * gate.reshape(gate.shape[0], gate.shape[1], 1, 1)).mean((2, 3)))


class Shared(nn.Cell):  # type: ignore[misc]
    """A dense layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten, self.first = nn.Flatten(), nn.Dense(64, 6)
        self.twice, self.head = nn.Dense(6, 6), nn.Dense(6, 3)

    def construct(self, image: Any) -> Any:
        values = ops.relu(self.first(self.flatten(image)))
        return self.head(ops.relu(self.twice(ops.relu(self.twice(values)))))


class Sorted(nn.Cell):  # type: ignore[misc]
    """Channels that an operator without a rule mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.head = build_convolution(1, 6), build_convolution(6, 5), nn.Dense(5, 3)

    def construct(self, image: Any) -> Any:
        values = ops.cumsum(self.stem(image), 1)
        return self.head(ops.relu(self.middle(values)).mean((2, 3)))


class Hardwired(nn.Cell):  # type: ignore[misc]
    """A width in the code of `construct`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.head = build_convolution(1, 6), build_convolution(6, 5), nn.Dense(5 * 64, 3)

    def construct(self, image: Any) -> Any:
        values = ops.relu(self.stem(image)).reshape(-1, 6, 8, 8)
        return self.head(ops.relu(self.middle(values)).reshape(values.shape[0], -1))


class Tokens(nn.Cell):  # type: ignore[misc]
    """Embeddings, a masked convolution over neighbours, mean and maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.neighbours = nn.Conv1d(6, 8, 3, has_bias=True)
        self.head = nn.Dense(16, 3)

    def construct(self, ids: Any) -> Any:
        mask = (ids != 0).astype(mindspore.float32)[:, :, None]
        values = ops.relu(self.neighbours((self.embedding(ids) * mask).swapaxes(1, 2)).swapaxes(1, 2)) * mask
        mean = values.sum(axis=1) / ops.clamp(mask.sum(axis=1), 1.0)
        return self.head(ops.cat((mean, values.max(axis=1)), axis=1))
