"""A deterministic tar of build context entries: the same bytes on every machine.

The tar is not compressed: gzip's output differs between zlib versions, so a compressed layer would have another digest
elsewhere. The layer's digest equals its diffID.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import PurePosixPath

from kfp_mindspore.images.sources.entry import CHUNK_BYTES, ContextEntry

_BLOCK = tarfile.BLOCKSIZE
_FOLDER_MODE = 0o755


class Layer:
    """The tar of entries below a folder.

    Args:
        entries: The layer's files and links.
        prefix: The entries' absolute folder; empty for the tar's root.
    """

    def __init__(self, entries: Sequence[ContextEntry], prefix: str = "") -> None:
        root = PurePosixPath(prefix.strip("/"))
        members: dict[str, ContextEntry | None] = {}
        # Folders are explicit: extractors create missing parents with their own modes.
        for path in (root, *root.parents):
            members[str(path)] = None
        for entry in entries:
            members.update({str(parent): None for parent in (root / entry.path).parents})
        members.update({str(root / entry.path): entry for entry in entries})
        members.pop(".", None)
        self._members = [(_make_header(name, members[name]), members[name]) for name in sorted(members, key=str.encode)]
        self.size_bytes = sum(len(header) + _pad(entry.size if entry else 0) for header, entry in self._members)
        self.size_bytes += 2 * _BLOCK

    @cached_property
    def digest(self) -> str:
        """`sha256:…` of the tar: the layer's digest and its diffID."""
        digest = hashlib.sha256()
        for chunk in self.read():
            digest.update(chunk)
        return f"sha256:{digest.hexdigest()}"

    def read(self) -> Iterator[bytes]:
        """Yield the tar in 1 MiB chunks.

        Raises:
            UserError: A file changed since its entry was made, or cannot be read.
        """
        buffer: list[bytes] = []
        buffered = 0
        for part in self._read_members():
            # Headers and small files are joined: each chunk costs an HTTP client call.
            buffer.append(part)
            buffered += len(part)
            if buffered >= CHUNK_BYTES:
                yield b"".join(buffer)
                buffer, buffered = [], 0
        if buffer:
            yield b"".join(buffer)

    def _read_members(self) -> Iterator[bytes]:
        for header, entry in self._members:
            yield header
            if entry is not None and not entry.link:
                yield from entry.read()
                yield bytes(_pad(entry.size) - entry.size)
        yield bytes(2 * _BLOCK)


def _pad(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _make_header(name: str, entry: ContextEntry | None) -> bytes:
    info = tarfile.TarInfo(name)
    if entry is None:
        info.type, info.mode = tarfile.DIRTYPE, _FOLDER_MODE
    elif entry.link:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.link
    else:
        info.mode, info.size = entry.mode, entry.size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
