"""OCI image layouts: blobs by their digest, and an index of manifests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.registry.blob import Blob, BytesBlob
from kfp_mindspore.images.registry.manifest import OCI_INDEX, OCI_MANIFEST, Manifest, make_manifest

TAG = "org.opencontainers.image.ref.name"
_EMPTY = BytesBlob(b"{}")
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileBlob:
    """A blob in a layout; reading it to its end verifies its digest."""

    path: Path
    digest: str

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.path.stat().st_size

    def read(self) -> Iterator[bytes]:
        """Yield the bytes.

        Raises:
            UserError: They have another digest.
        """
        found = hashlib.sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
                yield chunk
        if f"sha256:{found.hexdigest()}" != self.digest:
            raise UserError(
                f"{self.path}: was changed: its content has the digest sha256:{found.hexdigest()}",
                hint="Make or download it again.",
            )


class Layout:
    """The directory of a layout.

    Args:
        root: The directory; `add` and `write_index` create it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def manifests(self) -> list[dict[str, Any]]:
        """The index's descriptors.

        Raises:
            UserError: The directory has no index.
        """
        try:
            found: list[dict[str, Any]] = json.loads((self.root / "index.json").read_bytes())["manifests"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{self.root}: is no OCI image layout: index.json is missing or damaged") from None
        return found

    def get_blob(self, digest: str) -> FileBlob:
        """Return a blob.

        Raises:
            UserError: It is missing.
        """
        path = self._locate(digest)
        if not path.is_file():
            raise UserError(f"{path}: is missing", hint="Make or download it again.")
        return FileBlob(path, digest)

    def read(self, digest: str) -> bytes:
        """Return a small blob's content; raises `UserError` if it is missing or changed."""
        return b"".join(self.get_blob(digest).read())

    def get_manifest(self, descriptor: Mapping[str, Any]) -> Manifest:
        """Return a descriptor's manifest; raises `UserError` if it is missing or changed."""
        return Manifest(self.read(descriptor["digest"]), descriptor["mediaType"])

    def add(self, blob: Blob) -> dict[str, Any]:
        """Store a blob and return its digest and size.

        Raises:
            UserError: It has another digest.
        """
        path = self._locate(blob.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for chunk in blob.read():
                file.write(chunk)
        for _ in FileBlob(path, blob.digest).read():
            pass
        return {"digest": blob.digest, "size": blob.size_bytes}

    def add_manifest(self, manifest: Manifest, **fields: Any) -> dict[str, Any]:
        """Store a manifest and return its descriptor with further fields."""
        return {"mediaType": manifest.media_type, **self.add(BytesBlob(manifest.content)), **fields}

    def add_referrer(self, subject: Mapping[str, Any], kind: str, content: bytes) -> dict[str, Any]:
        """Store content that refers to an image, and return its manifest's descriptor.

        Args:
            subject: The image's descriptor.
            kind: The content's media type, which is the manifest's artifact type too.
            content: The content.
        """
        fields = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": kind,
            "config": {"mediaType": _EMPTY_TYPE, **self.add(_EMPTY)},
            "layers": [{"mediaType": kind, **self.add(BytesBlob(content))}],
            "subject": {name: subject[name] for name in ("mediaType", "digest", "size")},
        }
        return self.add_manifest(make_manifest(fields), artifactType=kind)

    def write_index(self, descriptors: Sequence[Mapping[str, Any]]) -> None:
        """Write the index, and the file that marks the directory as a layout."""
        index = make_manifest({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(descriptors)})
        (self.root / "index.json").write_bytes(index.content)
        (self.root / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")

    def list_blobs(self, manifest: Manifest) -> list[FileBlob]:
        """Return a manifest's blobs: its configuration and layers, each once; raises `UserError` if one is missing."""
        entries = [manifest.fields["config"], *manifest.fields["layers"]]
        return [self.get_blob(digest) for digest in dict.fromkeys(entry["digest"] for entry in entries)]

    def check(self) -> None:
        """Verify the digests of all manifests and their blobs.

        Raises:
            UserError: One is missing or changed.
        """
        for descriptor in self.manifests:
            for blob in self.list_blobs(self.get_manifest(descriptor)):
                for _ in blob.read():
                    pass

    def _locate(self, digest: str) -> Path:
        return self.root / "blobs" / "sha256" / Path(digest.removeprefix("sha256:")).name
