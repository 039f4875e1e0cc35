"""An image with a model's files alone, which KServe mounts from a registry in place of a download.

KServe expects the files below /models: `oci+native://` mounts the image as a volume, `oci://` runs it as a sidecar,
which needs a shell, hence a base image.
"""

from __future__ import annotations

import json
from pathlib import Path

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.build import make_plan
from kfp_mindspore.images.builders.append import AppendBuilder
from kfp_mindspore.images.plan import ImageOptions, check_platform
from kfp_mindspore.images.progress import BuildProgress, OnProgress, ignore_progress
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.blob import Blob, BytesBlob, has_blob, push_blob
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.manifest import LAYER_TYPES, OCI_MANIFEST, make_manifest, push_manifest
from kfp_mindspore.images.registry.session import RegistrySession
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from kfp_mindspore.images.sources.layer import Layer

MODEL_FOLDER = "/models"
_CREATED = "1970-01-01T00:00:00Z"


def push_model(
    folder: Path,
    destination: str,
    registry: RegistryConfig,
    *,
    base: str = "",
    platform: str = "linux/amd64",
    on_progress: OnProgress = ignore_progress,
) -> str:
    """Push a folder's files as an image, and return its name by digest; equal files give an equal digest.

    Args:
        folder: The bundle's folder.
        destination: `REGISTRY/NAME:TAG`.
        registry: How registries are reached.
        base: Image with a shell, below the files; empty for an image with the files alone, in one layer.
        platform: Such as linux/amd64, as the nodes have it; the files are the same for each.
        on_progress: Called with the progress.

    Raises:
        UserError: A name is invalid, or the folder has no files.
        NotFoundError: There is no such base image.
        KfpMindSporeError: The registry failed; no tag was set.
    """
    target = parse_reference(destination, field="destination", hint="REGISTRY/NAME:TAG")
    if not target.tag or target.digest:
        raise UserError(f"destination: must be REGISTRY/NAME:TAG, got {destination!r}")
    check_platform(platform)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = [ContextEntry(path.relative_to(folder).as_posix(), path.stat().st_size, source=path) for path in files]
    if not entries:
        raise UserError(f"{folder}: has no files", hint="Name a bundle's folder, such as of `model export`.")
    if base:
        builder = AppendBuilder(registry)
        options = ImageOptions(base, platform, workdir=MODEL_FOLDER, user="", created=0)
        return builder.make(make_plan(BuildContext(entries), options, builder), target, on_progress).reference
    return _push_files(entries, target, registry, platform, on_progress)


def _push_files(
    entries: list[ContextEntry], target: Reference, registry: RegistryConfig, platform: str, on_progress: OnProgress
) -> str:
    layer = Layer(entries, MODEL_FOLDER)
    system, architecture, *variant = platform.split("/")
    configuration = {
        "architecture": architecture,
        "config": {},
        "created": _CREATED,
        "os": system,
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        **({"variant": variant[0]} if variant else {}),
    }
    content = BytesBlob(json.dumps(configuration, sort_keys=True, separators=(",", ":")).encode())

    def describe(blob: Blob, kind: str) -> dict[str, object]:
        return {"mediaType": kind, "digest": blob.digest, "size": blob.size_bytes}

    manifest = make_manifest(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": describe(content, "application/vnd.oci.image.config.v1+json"),
            "layers": [describe(layer, LAYER_TYPES[OCI_MANIFEST])],
        }
    )
    head = layer.digest.partition(":")[2][:12]

    def report(done: int) -> None:
        on_progress(BuildProgress("Push layer", head, done, layer.size_bytes))

    with RegistrySession(target, registry) as session:
        for blob, on_bytes in ((layer, report), (content, lambda _: None)):
            if not has_blob(session, blob.digest):
                push_blob(session, blob, on_bytes)
        # By digest first, so that a tag never names a manifest that the registry stored wrong.
        push_manifest(session, manifest, manifest.digest)
        push_manifest(session, manifest, target.tag)
    return str(target.with_digest(manifest.digest))
