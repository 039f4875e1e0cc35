"""How values that came through KFP are spelled as arguments of a command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def spell_value(value: Any) -> str:
    """Spell a value as an argument or environment variable: KFP turns whole numbers into 5.0, this gives back 5."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def spell_hyperparameters(values: Mapping[str, Any]) -> list[str]:
    """Spell named values as arguments of a command.

    {"epochs": 5, "learning_rate": 0.01, "nesterov": True} becomes `--epochs 5 --learning-rate 0.01 --nesterov`. False
    and None leave an argument out. A parameter of a pipeline arrives as text, so `5.0` is spelled 5 here.

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
        whole = isinstance(value, str) and re.fullmatch(r"-?\d{1,15}\.0", value)
        parts.append(str(value).removesuffix(".0") if whole else spell_value(value))
    return parts
