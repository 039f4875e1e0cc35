"""The canonical form of JSON values: what means the same has one text, and so one digest.

KFP's struct has neither integers nor an order of keys, so that one argument arrives as `{"a": 3, "b": 1}` or as
`{"b": 1.0, "a": 3.0}`. Each digest of arguments (cache entry, job, checkpoint folder, rollout) is
computed here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any


def canonicalize(value: Any) -> Any:
    """Return a value with sorted keys, lists for tuples, and integers for floats without a fraction.

    Args:
        value: JSON types, mappings and tuples; other types are returned as they are.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        named = {key if isinstance(key, str) else to_canonical_json(key): item for key, item in value.items()}
        return {key: canonicalize(named[key]) for key in sorted(named)}
    if isinstance(value, (list, tuple)):
        return [canonicalize(item) for item in value]
    return value


def to_canonical_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value's canonical form as JSON.

    Args:
        value: The value, see `canonicalize`.
        default: Converts other types, as `json.dumps` calls it.
    """
    return json.dumps(canonicalize(value), default=default)


def digest_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return the sha256 over a value's canonical form, in hexadecimal; the arguments are `to_canonical_json`'s."""
    return hashlib.sha256(to_canonical_json(value, default).encode()).hexdigest()
