"""Blobs that can be read from any offset: bytes, a layer, or a blob of another repository."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import requests

from kfp_mindspore.images.registry.errors import RegistryError, TransientError, explain_failure
from kfp_mindspore.images.registry.session import Retry, Session

_CHUNK_BYTES = 1 << 20


class Blob(Protocol):
    """What is pushed: its size and digest are known before, and it is read again when sending fails."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""

    @property
    def digest(self) -> str:
        """`sha256:…`."""

    def read(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from one offset to before another."""


@dataclass(frozen=True)
class BytesBlob:
    """A blob in memory, such as an image's configuration."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return len(self.content)

    @cached_property
    def digest(self) -> str:
        """`sha256:…`."""
        return digest_bytes(self.content)

    def read(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from one offset to before another."""
        yield self.content[start:end]


@dataclass(frozen=True)
class RemoteBlob:
    """A blob of another repository, copied without being kept.

    Args:
        session: The repository that has it.
        digest: `sha256:…`.
        size_bytes: Size in bytes.
    """

    session: Session
    digest: str
    size_bytes: int

    def read(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from one offset to before another, going on where a connection broke.

        Raises:
            RegistryError: The registry fails, or sends fewer bytes than the blob has.
        """
        end = self.size_bytes if end is None else end
        retry = Retry(self.session.config)
        while start < end:
            before = start
            try:
                for chunk in self._fetch(start, end):
                    start += len(chunk)
                    yield chunk
                if start < end:
                    raise TransientError(f"pull {self.digest} from {self.session.reference.name}: ended early")
            except TransientError as error:
                if start > before:
                    retry.reset()
                retry.pause(error)

    def _fetch(self, start: int, end: int) -> Iterator[bytes]:
        action = "pull a layer from"
        response = self.session.ask(
            "get", f"blobs/{self.digest}", action, headers={"Range": f"bytes={start}-{end - 1}"}, stream=True
        )
        # A registry that knows no ranges sends the blob from its start.
        skip = start if response.status_code == requests.codes["ok"] else 0
        left = end - start
        with response:
            try:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    kept = chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    if kept:
                        yield kept[:left]
                        left -= len(kept[:left])
                    if not left:
                        return
            except requests.RequestException as error:
                what = f"{action} {self.session.reference.name}"
                raise explain_failure(error, what, self.session.reference.host) from error


def digest_bytes(content: bytes) -> str:
    """Return `sha256:…` of bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def pull_bytes(session: Session, digest: str, action: str) -> bytes:
    """Return a small blob, such as a configuration.

    Raises:
        RegistryError: What the registry sent has another digest.
    """
    content: bytes = session.ask("get", f"blobs/{digest}", action).content
    check_digest(content, digest, f"{action} {session.reference.name}")
    return content


def check_digest(content: bytes, digest: str, what: str) -> None:
    """Refuse bytes that are not those asked for.

    Raises:
        RegistryError: They have another digest.
    """
    found = digest_bytes(content)
    if found != digest:
        raise RegistryError(f"{what}: the registry sent {found} when {digest} was asked for")
