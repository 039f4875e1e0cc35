"""Uploads of blobs: not sent when the registry has them, in one request when small, else in pieces that go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import requests

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.images.registry.blob import Blob
from kfp_mindspore.images.registry.errors import MissingError, PermissionDeniedError, RegistryError, TransientError
from kfp_mindspore.images.registry.session import Retry, Session

_WHOLE_BYTES = 8 << 20
_PIECE_BYTES = 32 << 20
_ACTION = "push a layer to"
OnBytes = Callable[[int], None]


def has_blob(session: Session, digest: str) -> bool:
    """Return whether the repository has a blob."""
    try:
        session.ask("head", f"blobs/{digest}", "look for a layer in")
    except MissingError:
        return False
    return True


def mount_blob(session: Session, digest: str, repository: str) -> bool:
    """Make a blob of another repository of the same registry one of this repository.

    Args:
        session: The repository that gets it.
        digest: `sha256:…`.
        repository: Path of the repository that has it.

    Returns:
        False when the registry does not do it, since it cannot or the user may not read the other repository.
    """
    query = urlencode({"mount": digest, "from": repository})
    try:
        response = session.ask("post", f"blobs/uploads/?{query}", "mount a layer in")
    except (MissingError, PermissionDeniedError, RegistryError):
        return False
    if response.status_code == requests.codes["created"]:
        return True
    _cancel(session, _locate(session, response))
    return False


def push_blob(session: Session, blob: Blob, on_bytes: OnBytes) -> None:
    """Upload a blob that the repository does not have.

    Sending goes on from the byte that arrived last, as often as `RegistryConfig.attempts` says without progress.
    When it is given up, the registry is told so that it keeps nothing of it.

    Args:
        session: The repository.
        blob: What is sent.
        on_bytes: Called with how many bytes have arrived so far.

    Raises:
        RegistryError: The registry failed too often, or says that the bytes have another digest.
    """
    retry = Retry(session.config)
    while True:
        response = session.ask("post", "blobs/uploads/", _ACTION, data=b"")
        upload = _Upload(session, blob, _locate(session, response), on_bytes, retry)
        try:
            if upload.send():
                return
        except BaseException:
            upload.cancel()
            raise


class _Upload:
    """One upload session of a registry."""

    def __init__(self, session: Session, blob: Blob, location: str, on_bytes: OnBytes, retry: Retry) -> None:
        self._session, self._blob, self._location = session, blob, location
        self._on_bytes, self._retry = on_bytes, retry
        self._offset = 0

    def send(self) -> bool:
        """Send all bytes and finish; return False when the registry forgot the session and another must be begun."""
        whole = self._blob.size_bytes <= _WHOLE_BYTES
        while True:
            try:
                if not whole:
                    self._send_pieces()
                self._finish(whole)
            except TransientError as error:
                self._retry.pause(error)
                if has_blob(self._session, self._blob.digest):
                    break
                if whole or not self._find_offset():
                    self.cancel()
                    return False
            except MissingError as error:
                self._retry.pause(TransientError(error.message))
                return False
            else:
                break
        self._on_bytes(self._blob.size_bytes)
        return True

    def cancel(self) -> None:
        """Let the registry drop what it has of this upload."""
        _cancel(self._session, self._location)

    def _send_pieces(self) -> None:
        while self._offset < self._blob.size_bytes:
            end = min(self._offset + _PIECE_BYTES, self._blob.size_bytes)
            headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{self._offset}-{end - 1}"}
            body = _Body(self._blob, self._offset, end, self._on_bytes)
            response = self._session.send("patch", self._location, _ACTION, data=body, headers=headers)
            self._location = _locate(self._session, response)
            self._offset = end
            self._retry.reset()

    def _finish(self, whole: bool) -> None:
        body = _Body(self._blob, 0, self._blob.size_bytes, self._on_bytes) if whole else b""
        headers = {"Content-Type": "application/octet-stream"}
        url = _add_query(self._location, digest=self._blob.digest)
        response = self._session.send("put", url, _ACTION, data=body, headers=headers)
        said = response.headers.get("Docker-Content-Digest", self._blob.digest)
        if said != self._blob.digest:
            raise RegistryError(
                f"{_ACTION} {self._session.reference.name}: the registry says it holds {said}, sent was "
                f"{self._blob.digest}",
                hint="Nothing was tagged. Something between here and the registry changes what is sent.",
            )

    def _find_offset(self) -> bool:
        """Ask how many bytes arrived; False when the session is gone."""
        try:
            response = self._session.ask_url("get", self._location, "go on with a layer to")
        except (MissingError, RegistryError):
            return False
        last = response.headers.get("Range", "").rpartition("-")[2]
        if not last.isdigit():
            return False
        # "0-0" stands for no byte as well as for one.
        arrived = int(last) + 1 if int(last) else 0
        if arrived > self._offset:
            self._retry.reset()
        if arrived > self._blob.size_bytes:
            return False
        self._offset = arrived
        self._location = _locate(self._session, response, self._location)
        return True


class _Body:
    """A part of a blob as the body of a request, which is read again when the request is repeated."""

    def __init__(self, blob: Blob, start: int, end: int, on_bytes: OnBytes) -> None:
        self._blob, self._start, self._end, self._on_bytes = blob, start, end, on_bytes

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[bytes]:
        position = self._start
        for chunk in self._blob.read(self._start, self._end):
            yield chunk
            position += len(chunk)
            self._on_bytes(position)


def _locate(session: Session, response: requests.Response, known: str = "") -> str:
    location = response.headers.get("Location", known)
    if not location:
        raise RegistryError(f"{_ACTION} {session.reference.name}: the registry does not say where to send it")
    url = urlsplit(urljoin(response.url, location))
    if url.hostname != urlsplit(response.url).hostname:
        # The login would go there too.
        raise RegistryError(f"{_ACTION} {session.reference.name}: the registry wants it sent to {url.hostname} instead")
    # Behind a proxy that ends TLS a registry says http.
    scheme = "http" if session.config.is_insecure(session.reference.host) else "https"
    return urlunsplit(url._replace(scheme=scheme))


def _add_query(url: str, **values: str) -> str:
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, urlencode(values)) if part)
    return urlunsplit(parts._replace(query=query))


def _cancel(session: Session, location: str) -> None:
    # The registry purges it sooner or later when it cannot be told now.
    with contextlib.suppress(KfpMindSporeError):
        session.send("delete", location, "give up a layer to")
