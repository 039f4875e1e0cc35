"""Base images with Python: from a registry by digest, or from an OCI image layout or its archive."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images.reference import parse_reference
from kfp_mindspore.images.registry.blob import Blob, RemoteBlob
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.manifest import Manifest, fetch_manifest, pick_platform, require_manifest
from kfp_mindspore.images.registry.session import RegistrySession
from release.layout import TAG, Layout

# Wheels are chosen for the Python and the platform that the release is made with.
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PLATFORM = f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"
_TEXTS = re.compile(r"(?:etc|usr/lib)/os-release|var/lib/dpkg/(?:status|status\.d/[^/]+)")
_PROGRAMS = re.compile(r"usr/(?:local/)?bin/python3\.\d+|(?:usr/)?lib/(?:[^/]+/)?libgomp\.so\.1")
_EXPECTED = "Expected REGISTRY/NAME@sha256:…, the directory of an OCI image layout, or its archive."


@dataclass(frozen=True)
class Base:
    """A base image.

    Args:
        name: Its name for labels; nothing of this machine.
        manifest: Its manifest for this platform.
        get_blob: Returns a descriptor's blob.
    """

    name: str
    manifest: Manifest
    get_blob: Callable[[Mapping[str, Any]], Blob]


@contextlib.contextmanager
def open_base(text: str, registry: RegistryConfig) -> Iterator[Base]:
    """Yield a base image.

    Args:
        text: `REGISTRY/NAME@sha256:…`, a layout's directory, or an archive of one.
        registry: How registries are reached.

    Raises:
        NotFoundError: There is none.
        UserError: It is neither a layout nor pinned by digest, or for another platform.
    """
    path = Path(text)
    if path.is_dir():
        yield _open_layout(path)
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="kfp-mindspore-release-") as folder:
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(folder, filter="data")
            except tarfile.TarError as error:
                raise UserError(f"base: {text}: cannot be read: {error}", hint=_EXPECTED) from None
            yield _open_layout(Path(folder))
    elif "@" not in text:
        raise NotFoundError(f"base: {text}: is no file, and not pinned by a digest", hint=_EXPECTED)
    else:
        reference = parse_reference(text, field="base", hint=_EXPECTED)
        with RegistrySession(registry.locate(reference), registry) as session:
            manifest = require_manifest(session, reference.digest, f"base: {text}")
            if manifest.is_index:
                manifest = fetch_manifest(session, pick_platform(manifest, PLATFORM, f"base: {text}")["digest"])
            yield Base(
                reference.name, manifest, lambda entry: RemoteBlob(session, str(entry["digest"]), int(entry["size"]))
            )


def _open_layout(path: Path) -> Base:
    layout = Layout(path)
    # Docker's and cosign's layouts list attestations and signatures too.
    images = [entry for entry in layout.manifests if "artifactType" not in entry]
    if len(images) != 1:
        raise UserError(f"base: its index has {len(images)} images, expected one", hint=_EXPECTED)
    manifest = layout.get_manifest(images[0])
    if manifest.is_index:
        manifest = layout.get_manifest(pick_platform(manifest, PLATFORM, "base"))
    name = (images[0].get("annotations") or {}).get(TAG, "")
    return Base(str(name), manifest, lambda entry: layout.get_blob(str(entry["digest"])))


def read_files(layout: Layout, manifest: Manifest) -> dict[str, str]:
    """Return the files of a base image that a release depends on: texts, and programs as empty texts.

    Args:
        layout: A layout with the image's blobs.
        manifest: The image's manifest.

    Raises:
        UserError: A layer is compressed by another program than gzip.
    """
    found = {}
    for entry in manifest.fields["layers"]:
        path = layout.get_blob(entry["digest"]).path
        try:
            with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as layer:
                for member in layer:
                    name = member.name.removeprefix("./").lstrip("/")
                    if _PROGRAMS.fullmatch(name):
                        found[name] = ""
                    elif _TEXTS.fullmatch(name) and (content := layer.extractfile(member) if member.isreg() else None):
                        found[name] = content.read().decode(errors="replace")
        except tarfile.TarError as error:
            raise UserError(f"base: layer {entry['digest']}: cannot be read: {error}, expected gzip") from None
    return found


def get_python(files: Mapping[str, str]) -> str:
    """Return the path of a base image's Python.

    Raises:
        UserError: It has none of the version that makes the release.
    """
    for folder in ("usr/local/bin", "usr/bin"):
        if f"{folder}/{PYTHON}" in files:
            return f"/{folder}/{PYTHON}"
    others = sorted({name.rpartition("/")[2] for name in files if "/bin/" in name})
    raise UserError(
        f"base: must have {PYTHON}, with which the release is made, got {', '.join(others) or 'no Python'}",
        hint="Choose another base, or make the release with its Python: make release PYTHON=…",
    )


def list_debian_packages(files: Mapping[str, str]) -> list[dict[str, str]]:
    """Return name, version, architecture and distribution of each installed package; none without dpkg's database."""
    release = _parse_fields(files.get("etc/os-release") or files.get("usr/lib/os-release", ""), "=")
    distribution = release.get("ID", "debian").strip('"')
    version = release.get("VERSION_ID", "").strip('"')
    found = []
    for name in sorted(files):
        for block in files[name].split("\n\n") if name.startswith("var/lib/dpkg/") else ():
            fields = _parse_fields(block, ": ")
            if "Package" in fields and fields.get("Status", "installed").endswith("installed"):
                found.append(
                    {
                        "name": fields["Package"],
                        "version": fields.get("Version", ""),
                        "architecture": fields.get("Architecture", "all"),
                        "vendor": distribution,
                        "distribution": f"{distribution}-{version}",
                    }
                )
    return found


def _parse_fields(text: str, separator: str) -> dict[str, str]:
    lines = [line.partition(separator) for line in text.splitlines() if line[:1].strip()]
    return {name: value for name, found, value in lines if found}
