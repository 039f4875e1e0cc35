"""Dropout with random numbers that a resumed run repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as types

COUNTER_PREFIX = "dropout_counter."
# 2³² divided by the golden ratio.
_STRIDE = 0x9E3779B9
_HALF = 1 << 16


class CountedDropout(nn.Dropout):  # type: ignore[misc]
    """nn.Dropout whose mask is a hash of (seed, number of the call, index of the element).

    The state of MindSpore 2.9's kernel on CPU is inaccessible, and a resumed run repeats its first draws. Here
    the state is one counter, a parameter that a checkpoint contains. The hash is a counter-based generator with three
    rounds of squaring (Widynski, Squares: A Fast Counter-Based RNG, 2020) in 32 bits. It rotates by casts and
    multiplications: MindSpore 2.9 computes bitwise operations on CPU 15 times slower than multiplications.
    """

    def construct(self, x):  # type: ignore[no-untyped-def]  # noqa: D102
        if not self.training:
            return x
        call = ops.assign_add(self.counter, 1)
        key = self.hash(call.astype(types.uint32), self.salt)  # type: ignore[no-untyped-call]
        index = ops.arange(0, x.size, dtype=types.int32).astype(types.uint32)
        bits = self.hash(index, key)  # type: ignore[no-untyped-call]
        keep = ops.reshape(bits >= self.threshold, x.shape)
        return x * keep.astype(x.dtype) * self.scale

    def hash(self, index, key):  # type: ignore[no-untyped-def]
        """Return uint32 numbers whose high bits are random."""
        first = index * self.stride + key
        value = self.swap(first * first + first)  # type: ignore[no-untyped-call]
        value = self.swap(value * value + first + key)  # type: ignore[no-untyped-call]
        return value * value + first

    def swap(self, value):  # type: ignore[no-untyped-def]
        """Swap the halves of uint32 numbers; float32 rounds some of them, the same ones each time."""
        return value * self.half + (value.astype(types.float32) * (1 / _HALF)).astype(types.uint32)


def count_dropout(network: Any, seed: int, rank: int) -> list[Any]:
    """Turn the nn.Dropout cells of a network into CountedDropout.

    Args:
        network: The network; other random operators, such as ops.dropout, are unchanged.
        seed: Seed of the run.
        rank: Rank of the worker: the workers' masks differ.

    Returns:
        The counters, parameters outside of `network.get_parameters()`.
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
        # Not as an attribute of a Cell, which would make it a parameter of the network.
        object.__setattr__(cell, "counter", counter)
        cell.salt, cell.stride, cell.half, cell.threshold = (
            Tensor(np.array([value], np.uint32)) for value in (salt, _STRIDE, _HALF, int(rate * 2**32))
        )
        cell.scale = 1 / (1 - rate)
        counters.append(counter)
    return counters
