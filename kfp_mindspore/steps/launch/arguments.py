"""Conversion from KFP's parameter values to command-line arguments and artifact metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.canonical import to_canonical_json


def parse_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return named values, numeric texts converted to numbers.

    A pipeline parameter inside a dict arrives as text, and KFP turns the integer 5 into 5.0: `"5"`, `"5.0"` and 5.0
    become 5, `"1e-3"` becomes 0.001; `"007"`, `"nan"` and `"fast"` stay texts.

    Args:
        values: Values by name, JSON types.
    """
    return {name: parse_number(value) for name, value in values.items()}


def parse_number(value: Any) -> Any:
    """Return a numeric text as a number, and any other value as it is; see `parse_numbers`."""
    if isinstance(value, str) and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", value):
        value = json.loads(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def to_metadata(value: Any) -> str:
    """Convert structured artifact metadata to JSON: KFP stores only text and numbers."""
    return to_canonical_json(value, dict)
