"""Images in registries: found, resolved to digests, inspected."""

from __future__ import annotations

from collections.abc import Mapping

from kfp_mindspore.images.reference import Reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.result import BuildResult


def resolve_image(reference: Reference, platform: str, config: RegistryConfig) -> str:
    """Return the digest of an image's manifest, or of its index when the platform is `all`."""
    raise NotImplementedError


def find_image(target: Reference, labels: Mapping[str, str], config: RegistryConfig) -> BuildResult | None:
    """Return the image of a tag when it carries these labels, or None when there is no such tag."""
    raise NotImplementedError
