"""Rotary frequencies, and their scaling for texts longer than the training's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError

KINDS = ("linear", "llama3", "yarn", "factors")


@dataclass(frozen=True)
class RopeScaling:
    """A change to the rotary frequencies.

    Args:
        kind: `linear` divides all frequencies by `factor`; `llama3` those whose wavelength is long, with a smooth
            change between; `yarn` those with few rotations in `original_length`, with a linear change between, and
            multiplies cosines and sines by `attention_factor`; `factors` divides each by its own number, and also
            multiplies.
        factor: Divides the frequencies, at least 1.
        original_length: Positions in the first training; llama3 and yarn.
        low_freq_factor: Rotations in `original_length` up to which a frequency is divided; llama3.
        high_freq_factor: Rotations from which on it is unchanged; llama3.
        beta_fast: Rotations in `original_length` from which on a frequency is unchanged; yarn.
        beta_slow: Rotations up to which it is divided; yarn.
        truncate: Whether the range between is widened to whole dimensions; yarn.
        attention_factor: Multiplies cosines and sines; yarn and `factors`.
        factors: The divisors by frequency; `factors`.
        rotated: Pairs of features that rotate, the first ones; 0 for all; `factors`.

    Raises:
        ValidationError: A value is out of range; the message names it.
    """

    kind: str
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    factors: tuple[float, ...] = ()
    rotated: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        errors = []
        if self.kind not in KINDS:
            errors.append(f"kind: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 1 <= self.factor < math.inf:
            errors.append(f"factor: must be >= 1, got {self.factor}")
        if self.kind in ("llama3", "yarn") and self.original_length < 1:
            errors.append(f"original_length: must be >= 1, got {self.original_length}")
        for slow, fast in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            low, high = getattr(self, slow), getattr(self, fast)
            if not 0 < low < high < math.inf:
                errors.append(f"{fast}: must be > {slow} {low}, which must be > 0, got {high}")
        if not 0 < self.attention_factor < math.inf:
            errors.append(f"attention_factor: must be > 0, got {self.attention_factor}")
        if (self.kind == "factors") != bool(self.factors) or not all(0 < value < math.inf for value in self.factors):
            errors.append("factors: must be numbers > 0 with the kind factors, and empty with another")
        if not 0 <= self.rotated <= len(self.factors):
            errors.append(f"rotated: must be from 0 to {len(self.factors)}, the factors, got {self.rotated}")
        if errors:
            raise ValidationError(errors, subject="the rotary positions' scaling")

    @classmethod
    def build(cls, value: Any) -> RopeScaling | None:
        """Return a scaling from its JSON fields, or unchanged.

        Args:
            value: A mapping, a scaling or None.

        Raises:
            ValidationError: A field is not known or out of range.
        """
        if value is None or isinstance(value, cls):
            return value
        unknown = sorted(set(value) - {field.name for field in fields(cls)})
        if unknown:
            raise ValidationError([f"{name}: not a field" for name in unknown], subject="the rotary positions' scaling")
        return cls(**value)


def get_yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """Return yarn's `attention_factor` (arXiv 2309.00071, equation 22, with 0.1 for the constant).

    Args:
        factor: The scaling's.
        scale: `mscale` in DeepSeek's configurations.
    """
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def compute_frequencies(theta: float, head_size: int, scaling: RopeScaling | None) -> NDArray[np.float64]:
    """Return each feature pair's angle per position, (head_size / 2,).

    Args:
        theta: The frequencies' base.
        head_size: Features per head.
        scaling: Their scaling.
    """
    frequencies: NDArray[np.float64] = theta ** -(2 * np.arange(head_size // 2) / head_size)
    if scaling is None:
        return frequencies
    if scaling.kind == "factors":
        divisors = np.array(scaling.factors)
    else:
        # The part of each frequency that is divided, 0 to 1.
        divided: NDArray[np.float64] = np.ones_like(frequencies)
        if scaling.kind == "llama3":
            divided = _divide_llama3(frequencies, scaling)
        elif scaling.kind == "yarn":
            divided = _divide_yarn(theta, head_size, scaling)
        divisors = 1 / (1 - divided + divided / scaling.factor)
    scaled: NDArray[np.float64] = frequencies / divisors
    if scaling.rotated:
        scaled[scaling.rotated :] = 0
    return scaled


def _divide_llama3(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    rotations = scaling.original_length * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    divided: NDArray[np.float64] = np.clip((scaling.high_freq_factor - rotations) / span, 0, 1)
    return divided


def _divide_yarn(theta: float, head_size: int, scaling: RopeScaling) -> NDArray[np.float64]:
    def find_pair(rotations: float) -> float:
        """Return the index of the frequency, also between two, with this many rotations."""
        return head_size * math.log(scaling.original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = find_pair(scaling.beta_fast), find_pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The published bounds: the last one is by features, not by pairs.
    first, last = max(first, 0), min(last, head_size - 1)
    if first == last:
        last += 0.001
    divided: NDArray[np.float64] = np.clip((np.arange(head_size // 2) - first) / (last - first), 0, 1)
    return divided
