"""Conversion from KFP's parameter values to command-line arguments and artifact metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.options import to_text


def to_arguments(values: Mapping[str, Any]) -> list[str]:
    """Convert named values to command-line options.

    {"epochs": 5, "learning_rate": 0.01, "nesterov": True} becomes `--epochs 5 --learning-rate 0.01 --nesterov`. False
    and None omit the option. A pipeline parameter inside a dict arrives as text: `5.0` becomes `5`.

    Args:
        values: Values by name, JSON types.
    """
    parts: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        parts.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        is_integer = isinstance(value, str) and re.fullmatch(r"-?\d{1,15}\.0", value)
        parts.append(str(value).removesuffix(".0") if is_integer else to_text(value))
    return parts


def parse_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return named values, numeric texts converted to numbers.

    A pipeline parameter inside a dict arrives as text, and KFP turns the integer 5 into 5.0: `"5"`, `"5.0"` and 5.0
    become 5, `"1e-3"` becomes 0.001; `"007"`, `"nan"` and `"fast"` stay texts.

    Args:
        values: Values by name, JSON types.
    """
    return {name: _parse_number(value) for name, value in values.items()}


def _parse_number(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", value):
        value = json.loads(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def to_metadata(value: Any) -> str:
    """Convert structured artifact metadata to JSON: KFP stores only text and numbers."""
    return json.dumps(value, sort_keys=True, default=dict)
