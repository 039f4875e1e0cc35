"""Images in registries: digests, existing builds, descriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.images.plan import ALL_PLATFORMS
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.blob import pull_bytes
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.errors import MissingError
from kfp_mindspore.images.registry.manifest import (
    Manifest,
    fetch_manifest,
    format_platform,
    pick_platform,
    require_manifest,
)
from kfp_mindspore.images.registry.session import RegistrySession
from kfp_mindspore.images.result import BuildResult


@dataclass(frozen=True)
class ImageDescription:
    """An image in a registry.

    Args:
        reference: The image by digest.
        platforms: The image's platforms.
        size_bytes: Total size of layers and configurations in the registry.
        layers: Digest and size in bytes for each layer of the described platform, lowest first.
        labels: The described platform's labels.
        user: The command's user; empty for root.
        workdir: The command's working directory.
        command: Entry point and command.
        env: Environment, `NAME=value` each.
        created: Creation time, RFC 3339.
    """

    reference: str
    platforms: tuple[str, ...]
    size_bytes: int
    layers: tuple[tuple[str, int], ...]
    labels: Mapping[str, str]
    user: str
    workdir: str
    command: tuple[str, ...]
    env: tuple[str, ...]
    created: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return asdict(self)


def resolve_image(reference: Reference, platform: str, config: RegistryConfig) -> str:
    """Return an image's manifest digest for a platform, or its index digest when the platform is `all`.

    Raises:
        NotFoundError: There is no such image, or not for this platform.
        RegistryError: The registry fails.
    """
    with RegistrySession(config.locate(reference), config) as session:
        manifest = require_manifest(session, reference.selector, str(reference))
        if platform == ALL_PLATFORMS:
            return manifest.digest
        if manifest.is_index:
            digest: str = pick_platform(manifest, platform, str(reference))["digest"]
            return digest
        configuration = _pull_configuration(session, manifest)
        found = format_platform(configuration)
        if found != platform and not found.startswith(f"{platform}/"):
            raise NotFoundError(f"{reference}: is an image for {found or 'no known platform'}, not for {platform}")
        return manifest.digest


def get_built_image(target: Reference, labels: Mapping[str, str], config: RegistryConfig) -> BuildResult | None:
    """Return a tag's image if it has these labels, else None.

    Args:
        target: Repository and tag.
        labels: The labels.
        config: How registries are reached.

    Raises:
        RegistryError: The registry fails.
    """
    with RegistrySession(target, config) as session:
        try:
            manifest = fetch_manifest(session, target.selector)
            described = _describe(session, manifest, target, "")
        except MissingError:
            return None
    if any(described.labels.get(name) != value for name, value in labels.items()):
        return None
    return BuildResult(
        reference=described.reference,
        tag=target.tag,
        built=False,
        size_bytes=described.size_bytes,
        layers_sent=0,
        layers_reused=len(described.layers),
        sent_bytes=0,
        seconds=0.0,
    )


def inspect_image(image: str, config: RegistryConfig, *, platform: str = "") -> ImageDescription:
    """Describe an image.

    Args:
        image: Image name.
        config: How registries are reached.
        platform: Platform for the described layers and labels; default: the first.

    Raises:
        NotFoundError: There is no such image, or not for this platform.
        RegistryError: The registry fails.
    """
    reference = parse_reference(image)
    with RegistrySession(config.locate(reference), config) as session:
        manifest = require_manifest(session, reference.selector, image)
        return _describe(session, manifest, reference, platform)


def _describe(session: RegistrySession, manifest: Manifest, reference: Reference, platform: str) -> ImageDescription:
    images = [manifest]
    platforms: tuple[str, ...] = ()
    if manifest.is_index:
        platforms = tuple(format_platform(entry["platform"]) for entry in manifest.children)
        images = [fetch_manifest(session, entry["digest"]) for entry in manifest.children]
        if not images:
            raise NotFoundError(f"{reference}: its index has no runnable image")
    shown = images[0]
    if platform and manifest.is_index:
        wanted = pick_platform(manifest, platform, str(reference))["digest"]
        shown = next(image for image in images if image.digest == wanted)
    configuration = _pull_configuration(session, shown)
    settings = configuration.get("config") or {}
    blobs = {entry["digest"]: entry["size"] for image in images for entry in _list_blobs(image)}
    return ImageDescription(
        reference=str(reference.with_digest(manifest.digest)),
        platforms=platforms or (format_platform(configuration),),
        size_bytes=sum(blobs.values()),
        layers=tuple((entry["digest"], entry["size"]) for entry in shown.fields["layers"]),
        labels=dict(settings.get("Labels") or {}),
        user=settings.get("User") or "",
        workdir=settings.get("WorkingDir") or "/",
        command=(*(settings.get("Entrypoint") or ()), *(settings.get("Cmd") or ())),
        env=tuple(settings.get("Env") or ()),
        created=configuration.get("created") or "",
    )


def _list_blobs(manifest: Manifest) -> list[dict[str, Any]]:
    return [manifest.fields["config"], *manifest.fields["layers"]]


def _pull_configuration(session: RegistrySession, manifest: Manifest) -> dict[str, Any]:
    content = pull_bytes(session, manifest.fields["config"]["digest"], "read the configuration of")
    configuration: dict[str, Any] = json.loads(content)
    return configuration
