"""What the API server takes for a name."""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


def list_namespace_errors(field: str, *namespaces: object) -> list[str]:
    """Return what is wrong with names of namespaces, a sentence each.

    Args:
        field: What gave them.
        *namespaces: The names.
    """
    return [
        f"{field}: must be at most 63 lower-case letters, digits and '-', got {namespace!r}"
        for namespace in namespaces
        if not isinstance(namespace, str) or not _LABEL.fullmatch(namespace)
    ]


def list_name_errors(field: str, *names: str) -> list[str]:
    """Return what is wrong with names of objects such as Secrets and claims, a sentence each.

    Args:
        field: What gave them.
        *names: The names.
    """
    return [
        f"{field}: must be at most 253 lower-case letters, digits, '-' and '.', got {name!r}"
        for name in names
        if not _NAME.fullmatch(name)
    ]
