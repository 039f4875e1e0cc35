"""Images: from a notebook, a function, a script or a folder to a digest, with or without a Docker daemon."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.images.builders.base import Builder
    from kfp_mindspore.images.context import BuildContext, Entry
    from kfp_mindspore.images.plan import ImagePlan
    from kfp_mindspore.images.reference import Reference, parse_reference
    from kfp_mindspore.images.registry.configuration import RegistryConfig
    from kfp_mindspore.images.result import BuildResult, Progress

_MODULES = {
    "BuildContext": "context",
    "BuildResult": "result",
    "Builder": "builders.base",
    "Entry": "context",
    "ImagePlan": "plan",
    "Progress": "result",
    "Reference": "reference",
    "RegistryConfig": "registry.configuration",
    "parse_reference": "reference",
}

__all__ = [
    "BuildContext",
    "BuildResult",
    "Builder",
    "Entry",
    "ImagePlan",
    "Progress",
    "Reference",
    "RegistryConfig",
    "parse_reference",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
