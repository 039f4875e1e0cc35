"""A table with numbers, a text and lists of unequal lengths, and what `small_networks.Visit` returns for its rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

CITIES = ("Bergen", "Oslo", "Tromsø")
LENGTH = 6


def make_visits(count: int = 60) -> list[dict[str, Any]]:
    """Return rows; one in seven has an empty list."""
    source = random.Random(0)
    return [
        {
            "age": source.randint(18, 80),
            "income": round(source.gauss(3, 1), 3),
            "city": CITIES[index % len(CITIES)],
            "tokens": [source.randint(-9, 9) for _ in range(index % (LENGTH + 1))],
        }
        for index in range(count)
    ]


def compute_visit(age: float, income: float, city: str, tokens: Sequence[int]) -> list[float]:
    """Return the output for a row: padded tokens, mask, count, numbers and the city's one-hot vector."""
    empty = [0] * (LENGTH - len(tokens))
    places = [float(city == one) for one in CITIES]
    return [*empty, *tokens, *empty, *[1] * len(tokens), len(tokens), age, income, *places]
