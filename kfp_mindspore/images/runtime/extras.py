"""This package's extras, from its metadata, and what images have of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

from kfp_mindspore.errors import UserError

DISTRIBUTION = "kfp-mindspore"
EXTRAS_LABEL = "org.kfp-mindspore.image.extras"
# For work on this package.
_DEVELOPMENT = frozenset({"dev", "docs"})
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^\]]*)\])?[^;]*;.*\bextra *== *[\"'](?P<extra>[^\"']+)[\"']"
)


def list_extras() -> list[str]:
    """Return the extras that pyproject.toml declares for users, sorted.

    Raises:
        UserError: This package is not installed.
    """
    try:
        found = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        raise UserError(
            f"{DISTRIBUTION} is not installed: its extras are in its metadata", hint="Run pip install in the checkout."
        ) from None
    return sorted(set(found) - _DEVELOPMENT)


def has_package(extras: Iterable[str], package: str) -> bool:
    """Return whether extras bring a package."""
    return package in _list_packages(extras)


def list_missing_extras(needed: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return the needed extras, sorted, with a package that none of the present ones brings.

    Args:
        needed: Extras.
        present: An environment's extras.
    """
    packages = _list_packages(present)
    return sorted(extra for extra in set(needed) if not _list_packages([extra]) <= packages)


def _list_packages(extras: Iterable[str]) -> set[str]:
    """Return the names of the packages that extras bring, also by extras of this package that they name."""
    requirements = [found for line in metadata.requires(DISTRIBUTION) or [] if (found := _REQUIREMENT.match(line))]
    packages: set[str] = set()
    left, seen = list(extras), set()
    while left:
        extra = left.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for found in requirements:
            if found["extra"] != extra:
                continue
            if found["name"] == DISTRIBUTION:
                left += [name.strip() for name in found["extras"].split(",")]
            else:
                packages.add(found["name"].lower())
    return packages
