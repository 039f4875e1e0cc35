"""Dropout with random numbers that a resumed run repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as types

COUNTER_PREFIX = "dropout_counter."
# 2³² divided by the golden ratio.
_STRIDE = 0x9E3779B9


@ops.constexpr  # type: ignore[untyped-decorator]
def build_random_table(size: int) -> Tensor:
    """Return random uint32 numbers, a constant in the compiled graph."""
    return Tensor(np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32))


class CountedDropout(nn.Dropout):  # type: ignore[misc]
    """nn.Dropout whose mask is a function of (seed, call number, element index).

    MindSpore 2.9's kernel state on CPU is inaccessible, and a resumed run repeats the first draws. Here the state is
    one counter, a parameter that a checkpoint contains. A call keeps element i if factor · table[i] + summand (mod 2³²)
    is above a threshold; the table is random, and so are each call's factor (odd) and summand.
    """

    def construct(self, x):  # type: ignore[no-untyped-def]  # noqa: D102
        if not self.training:
            return x
        call = ops.assign_add(self.counter, 1).astype(types.uint32)
        factor = self.hash(call, self.salt) * self.two + self.one  # type: ignore[no-untyped-call]
        summand = self.hash(call, factor)  # type: ignore[no-untyped-call]
        keep = build_random_table(x.size) * factor + summand >= self.threshold
        return x * ops.reshape(keep, x.shape).astype(x.dtype) * self.scale

    def hash(self, index, key):  # type: ignore[no-untyped-def]
        """Return random uint32 numbers: three rounds in 32 bits, B. Widynski, Squares, 2020."""
        first = index * self.stride + key
        value = self.swap(first * first + first)  # type: ignore[no-untyped-call]
        value = self.swap(value * value + first + key)  # type: ignore[no-untyped-call]
        return self.swap(value * value + first)  # type: ignore[no-untyped-call]

    def swap(self, value):  # type: ignore[no-untyped-def]
        """Swap the halves of uint32 numbers."""
        return ops.bitwise_or(value * self.half, ops.bitwise_right_shift(value, self.sixteen))


def count_dropout(network: Any, seed: int, rank: int) -> list[Any]:
    """Turn a network's nn.Dropout cells into CountedDropout.

    Args:
        network: The network; other random operators, such as ops.dropout, are unchanged.
        seed: Run seed.
        rank: The worker's rank: the workers' masks differ.

    Returns:
        The counters, parameters outside `network.get_parameters()`.
    """
    found = [(name, cell) for name, cell in network.cells_and_names() if type(cell) in (nn.Dropout, CountedDropout)]
    salts = np.random.default_rng((seed, rank)).integers(0, 2**32, max(len(found), 1), dtype=np.uint32)
    counters = []
    for (name, cell), salt in zip(found, salts, strict=False):
        rate = cell.p if cell.p is not None else 1 - cell.keep_prob
        if not rate:
            continue
        counter = Parameter(Tensor(np.zeros(1, np.int32)), name=COUNTER_PREFIX + name, requires_grad=False)
        cell.__class__ = CountedDropout
        # Not as an attribute of a Cell, which would make it a network parameter.
        object.__setattr__(cell, "counter", counter)
        numbers = {"salt": salt, "stride": _STRIDE, "half": 1 << 16, "sixteen": 16, "one": 1, "two": 2}
        for field, value in {**numbers, "threshold": int(rate * 2**32)}.items():
            setattr(cell, field, Tensor(np.array([value], np.uint32)))
        cell.scale = 1 / (1 - rate)
        counters.append(counter)
    return counters
