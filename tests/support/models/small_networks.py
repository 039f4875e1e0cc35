"""Networks for tests, importable by name."""

from __future__ import annotations

import mindspore
from mindspore import nn, ops


class Classifier(nn.Cell):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(64, classes)

    def construct(self, image):
        return self.dense(self.flatten(image))


class Pair(nn.Cell):
    """Two inputs of different types, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = mindspore.Parameter(mindspore.Tensor([2.0], mindspore.float32), name="scale")

    def construct(self, values, index):
        return values * self.scale, index + 1


class Echo(nn.Cell):
    """Returns its input, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.scale = mindspore.Parameter(mindspore.Tensor(1.0, mindspore.float32), name="scale")

    def construct(self, values):
        return self.flatten(values) * self.scale


class Tokens(nn.Cell):
    """Returns padded ids, their mask and their count, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = mindspore.Parameter(mindspore.Tensor(1.0, mindspore.float32), name="scale")

    def construct(self, tokens, mask, count):
        numbers = (tokens.astype(mindspore.float32), mask, ops.expand_dims(count.astype(mindspore.float32), 1))
        return ops.concat(numbers, 1) * self.scale


class Visit(Tokens):
    """Returns `Tokens`' output beside a further feature."""

    def construct(self, features, tokens, mask, count):
        return ops.concat((super().construct(tokens, mask, count), features), 1)


class Sequence(nn.Cell):
    """Scores for each token, from the token and from all unmasked tokens."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.dense = nn.Dense(8, classes)

    def construct(self, ids, mask):
        known = self.table(ids) * mask.expand_dims(-1)
        total = ops.maximum(mask.sum(axis=1, keepdims=True), 1.0).expand_dims(-1)
        return self.dense(known + known.sum(axis=1, keepdims=True) / total)


class Unmasked(Sequence):
    """Ignores the mask, so padding changes the outputs."""

    def construct(self, ids, mask):
        known = self.table(ids) + mask.expand_dims(-1)
        return self.dense(known + known.mean(axis=1, keep_dims=True))


class Broken(Classifier):
    """Does not compile: the image is not flattened."""

    def construct(self, image):
        return self.dense(image)


class Noisy(Classifier):
    """Random outputs."""

    def construct(self, image):
        logits = self.dense(self.flatten(image))
        return logits + ops.standard_normal(logits.shape)


class Summed(Classifier):
    """Outputs without a row per sample."""

    def construct(self, image):
        return self.dense(self.flatten(image)).sum()


def make_classifier(classes: int = 10) -> Classifier:
    return Classifier(classes)


def make_nothing() -> None:
    return None


class Perceptron(nn.Cell):
    """Two dense layers with BatchNorm between them."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.first = nn.Dense(64, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Dense(hidden, 10)

    def construct(self, image):
        return self.second(ops.relu(self.norm(self.first(self.flatten(image)))))
