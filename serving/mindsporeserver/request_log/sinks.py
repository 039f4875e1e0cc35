"""Where events go: an HTTP endpoint, an object store, or files."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

import orjson

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.inference.logger import HTTP_SCHEMES, LoggerOptions
from kfp_mindspore.stores.artifact_store import ArtifactStore

_TIMEOUT_SECONDS = 5.0
# KServe's agent has as many workers.
_SENDERS = 5


@dataclass(frozen=True)
class Event:
    """A CloudEvent.

    Args:
        attributes: The attributes' values, `specversion` included.
        data: JSON.
    """

    attributes: dict[str, str]
    data: bytes

    def to_line(self) -> bytes:
        """Return the event in structured mode, a line of JSON."""
        fields = {**self.attributes, "datacontenttype": "application/json", "data": orjson.Fragment(self.data)}
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


class Sink(Protocol):
    """Writes events; used by `threads` threads.

    Attributes:
        threads: How many threads write.
        most: Most requests in a batch.
        seconds: How long a request waits for further ones.
    """

    threads: int
    most: int
    seconds: float

    def write(self, events: Sequence[Event]) -> None:
        """Write a batch.

        Raises:
            Exception: Nothing of it counts as written.
        """


class EndpointSink:
    """Sends each event in binary mode, as KServe's agent does."""

    threads, most, seconds = _SENDERS, 1, 0.05

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._connections = threading.local()
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None

    def write(self, events: Sequence[Event]) -> None:
        """Send events."""
        for event in events:
            headers = {
                f"ce-{name}": quote(value, safe=" :/!'()*+,;=@?#&[]{}") for name, value in event.attributes.items()
            }
            headers["Content-Type"] = "application/json"
            try:
                self._post(event.data, headers)
            except (OSError, http.client.HTTPException):
                self._close()
                raise

    def _post(self, body: bytes, headers: dict[str, str]) -> None:
        connection = self._get_connection()
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        connection.request("POST", target, body, headers)
        with connection.getresponse() as response:
            response.read()
        if response.status >= 300:
            raise http.client.HTTPException(f"status {response.status}")

    def _get_connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._connections, "open", None)
        if found is None:
            host, port = self._url.hostname or "", self._url.port
            if self._tls is None:
                found = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
            else:
                found = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=self._tls)
            self._connections.open = found
        return found

    def _close(self) -> None:
        self._get_connection().close()
        self._connections.open = None


class FileSink:
    """Appends lines to a file, or to a file a day in a folder; several processes may share them."""

    threads, most, seconds = 1, 1000, 0.2

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, events: Sequence[Event]) -> None:
        """Append events."""
        is_file = self._path.suffix == ".jsonl"
        path = self._path if is_file else self._path / time.strftime("%Y-%m-%d.jsonl", time.gmtime())
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"".join(event.to_line() for event in events)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            # In one call, so that lines of several processes do not mix.
            if os.write(descriptor, content) != len(content):
                raise OSError("the disk is full")
        finally:
            os.close(descriptor)


class StoreSink:
    """Writes an object of lines for each batch."""

    threads, most, seconds = 1, 1000, 5.0

    def __init__(self, url: str, attributes: dict[str, str]) -> None:
        folders = [attributes.get(name, "") for name in ("namespace", "inferenceservicename", "component")]
        self._prefix = "/".join([url.rstrip("/"), *filter(None, folders)])
        self._store: ArtifactStore = ArtifactStore([], {})
        self._host = socket.gethostname()

    def write(self, events: Sequence[Event]) -> None:
        """Write one object."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        uri = f"{self._prefix}/{stamp}-{self._host}-{uuid.uuid4().hex[:8]}.jsonl"
        self._store.write_bytes(uri, b"".join(event.to_line() for event in events))


def open_sink(options: LoggerOptions, attributes: dict[str, str]) -> Sink:
    """Return the sink for a URL or path.

    Args:
        options: The logger's options.
        attributes: Attributes of all events.

    Raises:
        KfpMindSporeError: A store's library is not installed.
    """
    if options.scheme in HTTP_SCHEMES:
        return EndpointSink(options.url)
    if not options.scheme:
        return FileSink(Path(options.url))
    try:
        ArtifactStore([], {}).open(options.url)
    except ImportError:
        raise KfpMindSporeError(
            f"logger.url: {options.scheme}:// needs a library that is not installed",
            hint=f"Install kfp-mindspore[{'gcs' if options.scheme == 'gs' else 'artifacts'}].",
        ) from None
    return StoreSink(options.url, attributes)


def describe_error(error: BaseException) -> str:
    """Return an error on one line of bounded length."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
