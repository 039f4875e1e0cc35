"""Blobs in a repository: layers and configurations, uploaded, mounted from another repository, and copied."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import requests

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.images.registry.errors import (
    MissingError,
    PermissionDeniedError,
    RegistryError,
    TransientError,
    explain_request_error,
)
from kfp_mindspore.images.registry.session import RegistrySession, retry

_CHUNK_BYTES = 1 << 20
_PUSH = "push a layer to"
_PULL = "pull a layer from"
OnBytes = Callable[[int], None]


class Blob(Protocol):
    """Content to upload, of known size and digest; it is read once per attempt."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""

    @property
    def digest(self) -> str:
        """`sha256:…`."""

    def read(self) -> Iterator[bytes]:
        """Yield the bytes."""


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
        return compute_digest(self.content)

    def read(self) -> Iterator[bytes]:
        """Yield the bytes."""
        yield self.content


@dataclass(frozen=True)
class RemoteBlob:
    """A blob in another repository, streamed without being stored.

    Args:
        session: The repository that has it.
        digest: `sha256:…`.
        size_bytes: Size in bytes.
    """

    session: RegistrySession
    digest: str
    size_bytes: int

    def read(self) -> Iterator[bytes]:
        """Yield the bytes.

        Raises:
            TransientError: The connection broke before the last byte.
            RegistryError: The registry fails.
        """
        action = f"{_PULL} {self.session.reference.name}"
        left = self.size_bytes
        with self.session.request("get", f"blobs/{self.digest}", _PULL, stream=True) as response:
            try:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    left -= len(chunk)
                    yield chunk
            except requests.RequestException as error:
                raise explain_request_error(error, action, self.session.reference.host) from error
        if left:
            raise TransientError(f"{action}: {self.digest} has {self.size_bytes - left} bytes, not {self.size_bytes}")


def compute_digest(content: bytes) -> str:
    """Return `sha256:…` of bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_blob(content: bytes, digest: str, action: str) -> None:
    """Verify content.

    Raises:
        RegistryError: It has another digest.
    """
    found = compute_digest(content)
    if found != digest:
        raise RegistryError(f"{action}: the registry sent {found} for {digest}")


def pull_bytes(session: RegistrySession, digest: str, action: str) -> bytes:
    """Return a small blob, such as a configuration.

    Raises:
        RegistryError: The content has another digest.
    """
    content: bytes = session.request("get", f"blobs/{digest}", action).content
    check_blob(content, digest, f"{action} {session.reference.name}")
    return content


def has_blob(session: RegistrySession, digest: str) -> bool:
    """Return whether the repository has a blob."""
    try:
        session.request("head", f"blobs/{digest}", "check for a layer in")
    except MissingError:
        return False
    return True


def mount_blob(session: RegistrySession, digest: str, repository: str) -> bool:
    """Mount a blob from another repository in the same registry.

    Args:
        session: The repository to mount it in.
        digest: `sha256:…`.
        repository: Path to the repository that has it.

    Returns:
        False when the registry does not support it, or the account cannot read the other repository.
    """
    query = urlencode({"mount": digest, "from": repository})
    try:
        response = session.request("post", f"blobs/uploads/?{query}", "mount a layer in")
    except (MissingError, PermissionDeniedError, RegistryError):
        return False
    if response.status_code == requests.codes["created"]:
        return True
    # The registry started an upload instead.
    _cancel_upload(session, _get_location(session, response))
    return False


def push_blob(session: RegistrySession, blob: Blob, on_bytes: OnBytes) -> None:
    """Upload a blob that the repository does not have, in one request; after a transient error from the start.

    Args:
        session: The repository.
        blob: The content.
        on_bytes: Called with the bytes sent so far.

    Raises:
        RegistryError: All attempts failed, or the registry computed another digest.
    """
    attempts = 0

    def upload() -> None:
        nonlocal attempts
        attempts += 1
        # A connection can break after the registry has stored the blob.
        if attempts > 1 and has_blob(session, blob.digest):
            return
        try:
            _upload(session, blob, on_bytes)
        except MissingError as error:
            raise TransientError(error.message) from error

    retry(session.config, upload)
    on_bytes(blob.size_bytes)


def _upload(session: RegistrySession, blob: Blob, on_bytes: OnBytes) -> None:
    location = _get_location(session, session.send("post", "blobs/uploads/", _PUSH, data=b""))
    parts = urlsplit(location)
    query = "&".join(part for part in (parts.query, urlencode({"digest": blob.digest})) if part)
    url = urlunsplit(parts._replace(query=query))
    try:
        headers = {"Content-Type": "application/octet-stream"}
        response = session.send("put", url, _PUSH, data=_Body(blob, on_bytes), headers=headers)
    except BaseException:
        _cancel_upload(session, location)
        raise
    stored = response.headers.get("Docker-Content-Digest", blob.digest)
    if stored != blob.digest:
        raise RegistryError(
            f"{_PUSH} {session.reference.name}: the registry stored {stored}, sent was {blob.digest}",
            hint="No tag was set. A proxy between this machine and the registry changes the content.",
        )


class _Body:
    """A blob as a request body with a length, read again when the request is repeated after a 401."""

    def __init__(self, blob: Blob, on_bytes: OnBytes) -> None:
        self._blob, self._on_bytes = blob, on_bytes

    def __len__(self) -> int:
        return self._blob.size_bytes

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        for chunk in self._blob.read():
            yield chunk
            sent += len(chunk)
            self._on_bytes(sent)


def _get_location(session: RegistrySession, response: requests.Response) -> str:
    location = response.headers.get("Location", "")
    if not location:
        raise RegistryError(f"{_PUSH} {session.reference.name}: no Location header in the registry's response")
    url = urlsplit(urljoin(response.url, location))
    if url.hostname != urlsplit(response.url).hostname:
        # The request carries the login.
        raise RegistryError(f"{_PUSH} {session.reference.name}: the upload's Location is another host, {url.hostname}")
    # A registry behind a TLS proxy returns http.
    return urlunsplit(url._replace(scheme=urlsplit(session.base_url).scheme))


def _cancel_upload(session: RegistrySession, location: str) -> None:
    # Registries purge abandoned uploads on their own schedule.
    with contextlib.suppress(KfpMindSporeError):
        session.send("delete", location, "cancel an upload to")
