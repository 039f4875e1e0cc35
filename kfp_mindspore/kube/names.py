"""Name validation."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


def list_namespace_errors(field: str, *namespaces: object) -> list[str]:
    """Return a sentence for each invalid namespace name.

    Args:
        field: The field or flag, for the message.
        *namespaces: The names.
    """
    return _list_errors(field, namespaces, _LABEL, "at most 63 lower-case letters, digits and '-'")


def list_name_errors(field: str, *names: object) -> list[str]:
    """Return a sentence for each invalid object name, such as a Secret or claim.

    Args:
        field: The field or flag, for the message.
        *names: The names.
    """
    return _list_errors(field, names, _NAME, "at most 253 lower-case letters, digits, '-' and '.'")


def _list_errors(field: str, names: Sequence[object], form: re.Pattern[str], rule: str) -> list[str]:
    return [
        f"{field}: must be {rule}, got {name!r}"
        for name in names
        if not isinstance(name, str) or not form.fullmatch(name)
    ]
