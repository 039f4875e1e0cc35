"""OCI and Docker manifests and indexes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.images.registry.blob import check_blob, compute_digest
from kfp_mindspore.images.registry.errors import MissingError, RegistryError
from kfp_mindspore.images.registry.session import RegistrySession

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_MANIFESTS, _INDEXES = (OCI_MANIFEST, DOCKER_MANIFEST), (OCI_INDEX, DOCKER_INDEX)
# An uncompressed layer's media type.
LAYER_TYPES = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar",
}


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index.

    Args:
        content: The bytes, which the digest is computed from.
        media_type: The manifest's media type.
    """

    content: bytes
    media_type: str

    @cached_property
    def digest(self) -> str:
        """`sha256:…`."""
        return compute_digest(self.content)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The parsed content."""
        parsed: dict[str, Any] = json.loads(self.content)
        return parsed

    @property
    def is_index(self) -> bool:
        """Whether it lists platform manifests."""
        return self.media_type in _INDEXES

    @property
    def children(self) -> list[dict[str, Any]]:
        """Descriptors of an index's runnable images; attestations have no platform and are left out."""
        return [
            entry
            for entry in self.fields.get("manifests", ())
            if (entry.get("platform") or {}).get("architecture") not in (None, "unknown")
        ]


def make_manifest(fields: dict[str, Any]) -> Manifest:
    """Return a manifest or index; the same fields give the same bytes."""
    return Manifest(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode(), fields["mediaType"])


def fetch_manifest(session: RegistrySession, selector: str) -> Manifest:
    """Return the manifest or index for a tag or digest.

    Raises:
        MissingError: There is none.
        RegistryError: Its media type is unknown, it is not JSON, or it has another digest.
    """
    action = f"read the manifest {selector} of"
    description = f"{action} {session.reference.name}"
    headers = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
    response = session.request("get", f"manifests/{selector}", action, headers=headers)
    if selector.startswith("sha256:"):
        check_blob(response.content, selector, description)
    try:
        fields = json.loads(response.content)
        media_type = fields.get("mediaType") or response.headers.get("Content-Type", "").partition(";")[0]
    except (ValueError, AttributeError):
        raise RegistryError(f"{description}: it is not a JSON object") from None
    if media_type not in (*_MANIFESTS, *_INDEXES):
        raise RegistryError(f"{description}: unknown media type {media_type!r}, expected OCI or Docker version 2")
    return Manifest(response.content, media_type)


def push_manifest(session: RegistrySession, manifest: Manifest, selector: str) -> None:
    """Store a manifest under a tag or its digest.

    Raises:
        RegistryError: The registry refuses it, or computed another digest.
    """
    action = f"push the manifest {selector} to"
    headers = {"Content-Type": manifest.media_type}
    response = session.request("put", f"manifests/{selector}", action, data=manifest.content, headers=headers)
    stored = response.headers.get("Docker-Content-Digest", manifest.digest)
    if stored != manifest.digest:
        raise RegistryError(
            f"{action} {session.reference.name}: the registry stored {stored}, sent was {manifest.digest}"
        )


def pick_platform(index: Manifest, platform: str, name: str) -> dict[str, Any]:
    """Return one platform's descriptor.

    A platform without a variant matches the first with its architecture.

    Raises:
        NotFoundError: The index has none; the hint names those it has.
    """
    known = {format_platform(entry["platform"]): entry for entry in reversed(index.children)}
    for text, entry in reversed(known.items()):
        if text == platform or text.startswith(f"{platform}/"):
            found: dict[str, Any] = entry
            return found
    raise NotFoundError(
        f"{name}: has no image for {platform}", hint=f"It has {', '.join(reversed(known)) or 'none that is runnable'}."
    )


def format_platform(platform: dict[str, Any]) -> str:
    """Return `os/architecture[/variant]`."""
    parts = (platform.get("os", ""), platform.get("architecture", ""), platform.get("variant", ""))
    return "/".join(part for part in parts if part)


def require_manifest(session: RegistrySession, selector: str, name: str) -> Manifest:
    """Return the manifest for an image that must exist; see `fetch_manifest`.

    Raises:
        NotFoundError: It does not.
    """
    try:
        return fetch_manifest(session, selector)
    except MissingError as error:
        raise NotFoundError(
            f"{name}: no such image: {error.message}", hint="Check its name, or name the mirror that has it."
        ) from error
