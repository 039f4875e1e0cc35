"""The one check of Kubernetes names: DNS labels and subdomains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Regular expressions without anchors, for Python, JSON schema and CEL alike; only NAMESPACE limits the length.
NAMESPACE = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
# DNS labels as in RFC 1035, which Kubernetes requires for names of Services.
SERVICE_NAME = "[a-z]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY = rf"({SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
# Labels that Kubernetes sets. Subdomains are not reserved: `app.kubernetes.io/name` is for users.
RESERVED_LABELS = ("kubernetes.io/", "k8s.io/")
_MAXIMUM_SUBDOMAIN = 253


def list_namespace_errors(field: str, *namespaces: object) -> list[str]:
    """Return a sentence for each invalid namespace name.

    Args:
        field: The field or flag, for the message.
        *namespaces: The names.
    """
    return _list_errors(field, namespaces, NAMESPACE, 63, "at most 63 lower-case letters, digits and '-'")


def list_name_errors(field: str, *names: object, longest: int = _MAXIMUM_SUBDOMAIN) -> list[str]:
    """Return a sentence for each invalid object name, such as a Secret or claim.

    Args:
        field: The field or flag, for the message.
        *names: The names.
        longest: Most characters: a name in a label's value has at most 63.
    """
    rule = f"at most {longest} lower-case letters, digits, '-' and '.'"
    return _list_errors(field, names, SUBDOMAIN, longest, rule)


def list_service_name_errors(field: str, name: object, longest: int) -> list[str]:
    """Return a sentence when a Service cannot have the name.

    Args:
        field: The field or flag, for the message.
        name: The name.
        longest: Most characters, which leave room for suffixes.
    """
    rule = (
        f"at most {longest} lower-case letters, digits and '-', starting with a letter, ending with a letter or digit"
    )
    return _list_errors(field, [name], SERVICE_NAME, longest, rule)


def list_reserved_errors(field: str, names: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    """Return a sentence for each label or annotation that is not the user's to set.

    Args:
        field: The field, for the message.
        names: The names of the labels or annotations.
        prefixes: The beginnings of reserved names.
    """
    return [
        f"{field}.{name}: is reserved; names that start with {prefix} are set by the cluster or this package"
        for name in names
        for prefix in prefixes
        if name.startswith(prefix)
    ]


def _list_errors(field: str, names: Sequence[object], form: str, longest: int, rule: str) -> list[str]:
    return [
        f"{field}: must be {rule}, got {name!r}"
        for name in names
        if not isinstance(name, str) or len(name) > longest or not re.fullmatch(form, name)
    ]
