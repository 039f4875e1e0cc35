"""A deterministic tar of a build context: the same bytes on any machine at any time, read from any offset.

The tar is never compressed: gzip's bytes differ between versions of zlib, so that a compressed layer would have another
digest elsewhere. What is stored is what is hashed: the layer's digest and its diffID are the same.
"""

from __future__ import annotations

import hashlib
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.images.context import Entry

CHUNK_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_FOLDER_MODE = 0o755


class Layer:
    """The tar of entries below a folder.

    Args:
        entries: What it holds, sorted by path.
        prefix: Absolute folder that the entries lie in; an empty text for the root of the tar.
    """

    def __init__(self, entries: Sequence[Entry], prefix: str = "") -> None:
        self._prefix = prefix.strip("/")
        self._members: list[Entry | str] = [*_list_folders(self._prefix, entries), *entries]
        self._members.sort(key=lambda member: _full_name(self._prefix, member).encode())
        self._offsets: list[int] = []
        offset = 0
        for member in self._members:
            self._offsets.append(offset)
            offset += len(_header(self._prefix, member)) + _padded(_size_of(member))
        self.size_bytes = offset + 2 * _BLOCK

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over the tar: the diffID, and the digest of the blob."""
        digest = hashlib.sha256()
        for chunk in self.read():
            digest.update(chunk)
        return f"sha256:{digest.hexdigest()}"

    def read(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the tar's bytes from one offset to before another, in chunks of about 1 MiB.

        Raises:
            UserError: A file changed since the context was made, or cannot be read.
        """
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        gathered: list[bytes] = []
        gathered_bytes = 0
        for part in self._read_parts(start, end):
            # Small files would be hundreds of bytes a chunk.
            gathered.append(part)
            gathered_bytes += len(part)
            if gathered_bytes >= CHUNK_BYTES:
                yield b"".join(gathered) if len(gathered) > 1 else part
                gathered, gathered_bytes = [], 0
        if gathered:
            yield b"".join(gathered)

    def _read_parts(self, start: int, end: int) -> Iterator[bytes]:
        first = max(0, bisect_right(self._offsets, start) - 1)
        position = self._offsets[first] if self._offsets else 0
        for chunk in self._read_members(first, start):
            if isinstance(chunk, int):
                position += chunk
                continue
            low, high = max(0, start - position), min(len(chunk), end - position)
            position += len(chunk)
            if low < high:
                yield chunk[low:high] if (low, high) != (0, len(chunk)) else chunk
            if position >= end:
                return

    def _read_members(self, first: int, start: int) -> Iterator[bytes | int]:
        """Yield the tar from a member on; a number stands for bytes before `start` that were not read."""
        for index in range(first, len(self._members)):
            member = self._members[index]
            header = _header(self._prefix, member)
            yield header
            if isinstance(member, str) or member.link:
                continue
            skip = min(max(0, start - self._offsets[index] - len(header)), member.size)
            if skip:
                yield skip
            yield from member.read(skip)
            if padding := _padded(member.size) - member.size:
                yield bytes(padding)
        yield bytes(2 * _BLOCK)


def _list_folders(prefix: str, entries: Sequence[Entry]) -> list[str]:
    # Written out, since what unpacks a layer makes missing folders with modes of its own.
    names = {str(folder) for folder in [PurePosixPath(prefix), *PurePosixPath(prefix).parents]} if prefix else set()
    for entry in entries:
        names.update(str(folder) for folder in PurePosixPath(_full_name(prefix, entry)).parents)
    return sorted(names - {"."})


def _full_name(prefix: str, member: Entry | str) -> str:
    if isinstance(member, str):
        return member
    return f"{prefix}/{member.path}" if prefix else member.path


def _size_of(member: Entry | str) -> int:
    return 0 if isinstance(member, str) or member.link else member.size


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _header(prefix: str, member: Entry | str) -> bytes:
    info = tarfile.TarInfo(_full_name(prefix, member))
    if isinstance(member, str):
        info.type, info.mode = tarfile.DIRTYPE, _FOLDER_MODE
    elif member.link:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, member.link
    else:
        info.mode, info.size = member.mode, member.size
    try:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    except UnicodeEncodeError:
        raise UserError(f"{info.name!r}: a file's name in an image must be UTF-8") from None
