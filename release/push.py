"""Push of a release's images with their referrers and signatures to a registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.images.reference import parse_repository
from kfp_mindspore.images.registry.blob import has_blob, push_blob
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.errors import MissingError
from kfp_mindspore.images.registry.manifest import OCI_INDEX, fetch_manifest, make_manifest, push_manifest
from kfp_mindspore.images.registry.session import RegistrySession
from release.layout import TAG, Layout
from release.signatures import verify_image


def push_images(
    folder: Path, destination: str, registry: RegistryConfig, key: ec.EllipticCurvePublicKey | None = None
) -> Iterator[str]:
    """Push each layout in a folder to the repository of its name, and yield the image's name by digest.

    All layouts are verified before the first request. An image's tag is set last.

    Args:
        folder: The folder, such as `dist/images`.
        destination: `REGISTRY/TEAM`.
        registry: How registries are reached.
        key: The key that must have signed the images; None to push them without or with any signatures.

    Raises:
        NotFoundError: The folder has no layouts.
        UserError: A byte was changed, or an image is not signed by the key.
        KfpMindSporeError: The registry failed.
    """
    targets = {path: parse_repository(f"{destination.rstrip('/')}/{path.name}") for path in sorted(folder.glob("*"))}
    if not targets:
        raise NotFoundError(f"{folder}: has no images", hint="make release VERSION=… BASE=…")
    for path in targets:
        Layout(path).check()
        if key is not None:
            verify_image(Layout(path), key)
    for path, target in targets.items():
        with RegistrySession(target, registry) as session:
            digest = _push_layout(session, Layout(path))
        yield str(target.with_digest(digest))


def _push_layout(session: RegistrySession, layout: Layout) -> str:
    image, *others = layout.manifests
    referrers = []
    for descriptor in (image, *others):
        manifest = layout.get_manifest(descriptor)
        for blob in layout.list_blobs(manifest):
            if not has_blob(session, blob.digest):
                push_blob(session, blob, lambda _: None)
        tag = descriptor.get("annotations", {}).get(TAG)
        # The image's tag is the last.
        push_manifest(session, manifest, tag if tag and descriptor is not image else manifest.digest)
        if "subject" in manifest.fields:
            referrers.append(descriptor)
    _list_referrers(session, image["digest"], referrers)
    push_manifest(session, layout.get_manifest(image), image["annotations"][TAG])
    digest: str = image["digest"]
    return digest


def _list_referrers(session: RegistrySession, digest: str, descriptors: Sequence[dict[str, Any]]) -> None:
    """Add descriptors to the index of an image's referrers where the registry does not keep one itself."""
    try:
        session.request("get", f"referrers/{digest}", "list referrers in")
        return
    except MissingError:
        tag = digest.replace(":", "-")
    try:
        listed = fetch_manifest(session, tag).fields["manifests"]
    except MissingError:
        listed = []
    entries = {entry["digest"]: entry for entry in (*listed, *descriptors)}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries.values())}
    push_manifest(session, make_manifest(index), tag)
