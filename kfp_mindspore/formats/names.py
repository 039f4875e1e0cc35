"""Names of columns, compared in Unicode's composed form (NFC).

macOS and some editors write `é` as two characters, a keyboard as one: both look the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any


def normalize_name(name: str) -> str:
    """Return a name in NFC."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def normalize_names(value: Any) -> Any:
    """Return a text, or the texts in a list or mapping, in NFC; other values as they are."""
    if isinstance(value, str):
        return normalize_name(value)
    if isinstance(value, Mapping):
        return {normalize_names(key): normalize_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(normalize_names, value))
    return value
