"""Arithmetic with Kubernetes quantities, such as `500m`, `1Gi` and `2e3`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

_SUFFIXES: dict[str, Fraction] = {
    **{suffix: Fraction(10) ** power for suffix, power in {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6}.items()},
    **{suffix: Fraction(10) ** power for suffix, power in {"G": 9, "T": 12, "P": 15, "E": 18}.items()},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)")


def parse_quantity(value: Any) -> Fraction | None:
    """Return a quantity's value, or None for an invalid one."""
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, (str, int, float)) else None
    if match is None:
        return None
    number, power, suffix = match.groups()
    return Fraction(number) * (Fraction(10) ** int(power) if power else _SUFFIXES[suffix or ""])


def format_quantity(number: Fraction) -> str:
    """Return a quantity: an integer, or thousandths, rounded up."""
    return str(number.numerator) if number.denominator == 1 else f"{-(-number * 1000 // 1)}m"


def sum_resources(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return each resource's sum; invalid quantities count as 0, as the API server refuses them anyway."""
    sums: dict[str, Fraction] = {}
    for item in resources:
        for name, value in item.items():
            sums[name] = sums.get(name, Fraction(0)) + (parse_quantity(value) or 0)
    return {name: format_quantity(number) for name, number in sorted(sums.items())}


def max_resources(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return each resource's largest amount."""
    largest: dict[str, Fraction] = {}
    for item in resources:
        for name, value in item.items():
            largest[name] = max(largest.get(name, Fraction(0)), parse_quantity(value) or Fraction(0))
    return {name: format_quantity(number) for name, number in sorted(largest.items())}
