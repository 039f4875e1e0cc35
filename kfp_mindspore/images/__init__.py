"""Images: from a notebook, a function, a script or a folder to a digest, with or without a Docker daemon."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.images.build import ImageOptions, PlanDescription, build_image, describe_plan, make_plan
    from kfp_mindspore.images.builders.append import AppendBuilder
    from kfp_mindspore.images.builders.base import Builder
    from kfp_mindspore.images.builders.cluster import ClusterBuilder
    from kfp_mindspore.images.builders.context_store import ClaimPlace, ObjectStorePlace
    from kfp_mindspore.images.builders.docker import DockerBuilder
    from kfp_mindspore.images.context import BuildContext, Entry
    from kfp_mindspore.images.folder import collect_folder
    from kfp_mindspore.images.function import collect_function, collect_script
    from kfp_mindspore.images.notebook import convert_notebook
    from kfp_mindspore.images.plan import ImagePlan
    from kfp_mindspore.images.reference import Reference, parse_reference
    from kfp_mindspore.images.registry.configuration import RegistryConfig
    from kfp_mindspore.images.registry.images import ImageDescription, inspect_image
    from kfp_mindspore.images.result import BuildResult, Progress

_MODULES = {
    "AppendBuilder": "builders.append",
    "BuildContext": "context",
    "BuildResult": "result",
    "Builder": "builders.base",
    "ClaimPlace": "builders.place",
    "ClusterBuilder": "builders.cluster",
    "DockerBuilder": "builders.docker",
    "Entry": "context",
    "ImageDescription": "registry.images",
    "ImageOptions": "build",
    "ImagePlan": "plan",
    "ObjectStorePlace": "builders.place",
    "PlanDescription": "build",
    "Progress": "result",
    "Reference": "reference",
    "RegistryConfig": "registry.configuration",
    "build_image": "build",
    "collect_folder": "folder",
    "collect_function": "function",
    "collect_script": "function",
    "convert_notebook": "notebook",
    "describe_plan": "build",
    "inspect_image": "registry.images",
    "make_plan": "build",
    "parse_reference": "reference",
}
__all__ = [
    "AppendBuilder",
    "BuildContext",
    "BuildResult",
    "Builder",
    "ClaimPlace",
    "ClusterBuilder",
    "DockerBuilder",
    "Entry",
    "ImageDescription",
    "ImageOptions",
    "ImagePlan",
    "ObjectStorePlace",
    "PlanDescription",
    "Progress",
    "Reference",
    "RegistryConfig",
    "build_image",
    "collect_folder",
    "collect_function",
    "collect_script",
    "convert_notebook",
    "describe_plan",
    "inspect_image",
    "make_plan",
    "parse_reference",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
