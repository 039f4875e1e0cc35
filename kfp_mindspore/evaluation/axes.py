"""Round axis ticks for the plots in reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)
_LARGE = 1e7
# Below it a float has fewer digits, and a tick's distance can be 0.
_LEAST = 1e-290


@dataclass(frozen=True)
class Axis:
    """A numeric axis.

    Args:
        low: Its start: the least tick.
        high: Its end: the greatest tick.
        ticks: Values and their texts.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]


def build_axis(low: float, high: float, count: int = 5) -> Axis:
    """Return an axis around two finite values whose ticks are multiples of 1, 2, 2.5 or 5 times a power of ten.

    Args:
        low: The least value.
        high: The greatest value.
        count: About how many ticks.
    """
    if high - low < _LEAST:
        margin = abs(low) / 2 if abs(low) > _LEAST else 1.0
        low, high = low - margin, low + margin
    raw = (high - low) / (count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    # Rounding: 0.3 / 0.1 is 2.9999999999999996.
    step = next(factor for factor in _STEPS if factor >= round(raw / power, 9)) * power
    first, last = math.floor(round(low / step, 9)), math.ceil(round(high / step, 9))
    # As many decimals as the step has; 2.5 has one more than its power of ten.
    decimals = max(0, -math.floor(math.log10(step))) + (round(step / 10 ** math.floor(math.log10(step)), 3) == 2.5)
    largest = max(abs(first), abs(last)) * step
    form = f",.{decimals if step < 10 else 0}f" if largest < _LARGE and decimals < 7 else ".3g"
    values = [index * step for index in range(first, last + 1)]
    return Axis(values[0], values[-1], tuple((value, format(value, form)) for value in values))
