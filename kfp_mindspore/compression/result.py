"""What a compression did."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.compression.groups import Left
from kfp_mindspore.compression.options import CompressionOptions


@dataclass(frozen=True)
class Round:
    """One round: a cut and fine-tuning.

    Args:
        wanted: Part of the target that was to be cut.
        pruned: Part that was cut.
        value: The metric afterwards.
        passed: Whether it lost no more than allowed.
    """

    wanted: float
    pruned: float
    value: float
    passed: bool


@dataclass(frozen=True)
class Sizes:
    """A network's sizes.

    Args:
        parameters: Trainable values.
        flops: Multiplications and additions for one sample.
        bytes: Stored weights, moving averages included.
        latency: The exported graph's least seconds by batch size.
    """

    parameters: int
    flops: int
    bytes: int
    latency: Mapping[int, float]


# Repeats of the comparison of two graphs' latencies, and the widest spread, as a part of the ratio, that is reported:
# equal graphs on a busy machine have had a ratio of 1.43.
BLOCKS, _WIDEST_SPREAD = 5, 0.2


@dataclass(frozen=True)
class Speedup:
    """How many times as fast one graph is as another, in repeats.

    Args:
        ratio: The repeats' median.
        low: The least one.
        high: The greatest one.
    """

    ratio: float
    low: float
    high: float

    @property
    def is_reliable(self) -> bool:
        """Whether the repeats agree; on a busy machine they do not."""
        return self.high - self.low <= _WIDEST_SPREAD * self.ratio

    def describe(self) -> str:
        """Return the ratio with its spread, or why there is none."""
        spread = f"{self.low:.2f} to {self.high:.2f} in {BLOCKS} repeats"
        return f"{self.ratio:.2f} times as fast ({spread})" if self.is_reliable else f"speed unknown: {spread}"


def compare_latency(before: Sequence[float], after: Sequence[float]) -> Speedup:
    """Compare the seconds that two graphs took in turns, each at least `BLOCKS` times.

    A repeat is every fifth turn: in each the fastest execution counts.
    """
    ratios = [min(before[block::BLOCKS]) / min(after[block::BLOCKS]) for block in range(BLOCKS)]
    return Speedup(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True)
class ParameterChange:
    """A parameter before and after.

    Args:
        name: The parameter's name.
        shape_before: Its shape.
        shape: The cut one.
        flops_before: Operations for one sample by this weight.
        flops: The same after the cut.
        bytes: Stored bytes after compression.
    """

    name: str
    shape_before: tuple[int, ...]
    shape: tuple[int, ...]
    flops_before: int
    flops: int
    bytes: int = 0

    @property
    def parameters_before(self) -> int:
        """Values before the cut."""
        return math.prod(self.shape_before)

    @property
    def parameters(self) -> int:
        """Values after the cut."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class CompressionResult:
    """A compression's result.

    Args:
        directory: The output directory.
        options: The options.
        metric: The gate's metric.
        split: The split that it was measured on.
        value_before: The network's metric.
        value: The compressed network's metric.
        lost: How much worse it is; below 0 for better.
        passed: Whether that is allowed.
        before: The network's sizes.
        after: The compressed network's sizes.
        layers: The parameters.
        left: Layers that could not be cut, with reasons.
        rounds: The rounds.
        speedups: How many times as fast the compressed network's graph is, by batch size.
    """

    directory: Path
    options: CompressionOptions
    metric: str
    split: str
    value_before: float
    value: float
    lost: float
    passed: bool
    before: Sizes
    after: Sizes
    layers: tuple[ParameterChange, ...]
    left: tuple[Left, ...]
    rounds: tuple[Round, ...]
    speedups: Mapping[int, Speedup]

    @property
    def checkpoint(self) -> Path:
        """The compressed checkpoint's directory."""
        return self.directory / "checkpoint"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.directory / "compression.html"

    @property
    def pruned(self) -> float:
        """Fraction of parameters that was cut."""
        return 1 - self.after.parameters / self.before.parameters

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        described = dataclasses.asdict(self)
        return {**described, "directory": str(self.directory), "pruned": self.pruned}
