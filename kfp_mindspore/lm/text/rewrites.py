"""Dates and numbers in words with their normal form."""

from __future__ import annotations

import numpy as np

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_ORDINALS |= {"twelve": "twelfth", "twenty": "twentieth"}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_NUMBERS, _DATES = 1000, 3000


def spell_number(number: int) -> str:
    """Return a number from 0 to 999 in words."""
    if number >= 100:
        rest = f" and {spell_number(number % 100)}" if number % 100 else ""
        return f"{_UNITS[number // 100]} hundred{rest}"
    if number < 20:
        return _UNITS[number]
    tens = _TENS[number // 10 - 2]
    return f"{tens}-{_UNITS[number % 10]}" if number % 10 else tens


def spell_ordinal(number: int) -> str:
    """Return the ordinal for a number from 1 to 28 in words."""
    head, dash, last = spell_number(number).rpartition("-")
    return head + dash + _ORDINALS.get(last, f"{last}th")


def build_rewrites(seed: int = 0) -> list[dict[str, str]]:
    """Return 4,000 examples with `prompt` and `completion`; no completion equals its prompt, no prompt occurs twice.

    They are the numbers from 0 to 999 in words, and dates from 1900 to 2099, up to the 28th, in five forms.

    Args:
        seed: Seed for the dates.
    """
    random = np.random.default_rng(seed)
    pairs = {spell_number(number): str(number) for number in range(_NUMBERS)}
    while len(pairs) < _NUMBERS + _DATES:
        year, month, day = (int(random.integers(*bounds)) for bounds in ((1900, 2100), (1, 13), (1, 29)))
        name = _MONTHS[month - 1]
        forms = (
            f"the {spell_ordinal(day)} of {name} {year}",
            f"{name} {day}, {year}",
            f"{day} {name} {year}",
            f"{name} the {spell_ordinal(day)}, {year}",
            f"{day}/{month}/{year}",
        )
        pairs[forms[int(random.integers(len(forms)))]] = f"{year}-{month:02d}-{day:02d}"
    return [{"prompt": prompt, "completion": completion} for prompt, completion in pairs.items()]
