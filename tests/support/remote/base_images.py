"""Small base images in a registry: files in layers, without programs."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.images.reference import Reference
from kfp_mindspore.images.registry.blob import BytesBlob, has_blob, push_blob
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.manifest import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Manifest,
    make_manifest,
    push_manifest,
)
from kfp_mindspore.images.registry.session import RegistrySession

_CONFIG_TYPES = {
    OCI_MANIFEST: "application/vnd.oci.image.config.v1+json",
    DOCKER_MANIFEST: "application/vnd.docker.container.image.v1+json",
}
_LAYER_TYPES = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
# What a base image with CANN sets.
CANN_PATHS = {
    "PATH": "/usr/local/Ascend/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/Ascend/lib64",
    "PYTHONPATH": "/usr/local/Ascend/python",
}
LAYERS: tuple[Mapping[str, bytes], ...] = ({"etc/os-release": b"ID=test\n"}, {"opt/tool/data": bytes(range(256)) * 64})


def push_base(
    host: str,
    repository: str = "team/base",
    tag: str = "1",
    *,
    config: RegistryConfig,
    layers: Sequence[Mapping[str, bytes]] = LAYERS,
    platforms: Sequence[str] = ("linux/amd64",),
    media_type: str = OCI_MANIFEST,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Push an image, or an index of several, and return its name with its tag.

    Args:
        host: The registry.
        repository: Where to.
        tag: Its tag.
        config: How the registry is reached.
        layers: The files of each layer.
        platforms: One platform makes an image, several make an index.
        media_type: OCI's or Docker's kind of manifest.
        settings: The `config` object of its configuration.
    """
    reference = Reference(host, repository, tag)
    with RegistrySession(reference, config) as session:
        images = [_push_image(session, layers, platform, media_type, dict(settings or {})) for platform in platforms]
        if len(images) == 1:
            push_manifest(session, images[0], tag)
            return str(reference)
        entries = []
        for image, platform in zip(images, platforms, strict=True):
            push_manifest(session, image, image.digest)
            parts = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
            entries.append(
                {"mediaType": media_type, "digest": image.digest, "size": len(image.content), "platform": parts}
            )
        kind = OCI_INDEX if media_type == OCI_MANIFEST else DOCKER_INDEX
        push_manifest(session, make_manifest({"schemaVersion": 2, "mediaType": kind, "manifests": entries}), tag)
    return str(reference)


def _push_image(
    session: RegistrySession,
    layers: Sequence[Mapping[str, bytes]],
    platform: str,
    media_type: str,
    settings: dict[str, Any],
) -> Manifest:
    diff_ids, descriptors = [], []
    for files in layers:
        tar = _pack(files)
        diff_ids.append(f"sha256:{hashlib.sha256(tar).hexdigest()}")
        blob = BytesBlob(gzip.compress(tar, 1, mtime=0))
        descriptors.append({"mediaType": _LAYER_TYPES[media_type], **_push(session, blob)})
    system, architecture, *variant = platform.split("/")
    configuration = {
        "os": system,
        "architecture": architecture,
        **({"variant": variant[0]} if variant else {}),
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    blob = BytesBlob(json.dumps(configuration).encode())
    fields = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": _CONFIG_TYPES[media_type], **_push(session, blob)},
        "layers": descriptors,
    }
    return make_manifest(fields)


def _push(session: RegistrySession, blob: BytesBlob) -> dict[str, Any]:
    if not has_blob(session, blob.digest):
        push_blob(session, blob, lambda _: None)
    return {"digest": blob.digest, "size": blob.size_bytes}


def _pack(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def evaluate_env(containerfile: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Containerfile's last stage over a base image's: ENV expands as a shell does."""
    stage = containerfile.replace("\\\n", " ").rpartition("\nFROM ")[2]
    assignments = " ".join(line.removeprefix("ENV ") for line in stage.splitlines() if line.startswith("ENV "))
    shown = 'exec /usr/bin/env -i PATH="$PATH" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" PYTHONPATH="$PYTHONPATH" /usr/bin/env'
    words = ["/bin/sh", "-c", f"{assignments}; {shown}"]
    printed = subprocess.run(words, env=dict(base), capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in printed.splitlines())
