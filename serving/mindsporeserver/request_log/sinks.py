"""Where events go: an HTTP endpoint, an object store, or files."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import orjson

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.inference.logger import HTTP_SCHEMES, LoggerOptions
from kfp_mindspore.stores.artifact_store import ArtifactStore

_SENDER = "mindsporeserver.request_log.sender"
_PLAIN = re.compile(r"[!#$&-~]*")


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
    """Writes events; used by one thread.

    Attributes:
        most: Most requests in a batch.
        seconds: How long a request waits for further ones.
    """

    most: int
    seconds: float

    def write(self, events: Sequence[Event]) -> None:
        """Write a batch.

        Raises:
            LostEventsError: Some events are lost.
            OSError: All events are lost.
            StoreError: All events are lost.
        """


class LostEventsError(OSError):
    """Some events of a batch are lost.

    Args:
        count: How many.
        reason: Why.
    """

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(reason)
        self.count = count


class EndpointSink:
    """Has a process send each event in binary mode, as KServe's agent does.

    Args:
        url: The endpoint.
    """

    most, seconds = 100, 0.05

    def __init__(self, url: str) -> None:
        self._command = (sys.executable, "-m", _SENDER, url)
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, events: Sequence[Event]) -> None:
        """Send events."""
        batch = []
        for event in events:
            headers = {f"ce-{name}": _escape(value) for name, value in event.attributes.items()}
            batch.append(({**headers, "Content-Type": "application/json"}, event.data.decode()))
        process = self._open()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(batch, option=orjson.OPT_APPEND_NEWLINE))
        process.stdin.flush()
        if not (answer := process.stdout.readline()):
            raise OSError("the sending process ended")
        lost, reason = orjson.loads(answer)
        if lost:
            raise LostEventsError(lost, reason)

    def _open(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # Not in the session: a terminal's Ctrl-C ends the server, and its end the process.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        return self._process


class FileSink:
    """Appends lines to a file, or to a file a day in a folder; several processes may share them."""

    most, seconds = 1000, 0.2

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

    most, seconds = 1000, 5.0

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


def _escape(value: str) -> str:
    """Return an attribute as CloudEvents' HTTP headers have it: printable ASCII, other characters as %XX."""
    return value if _PLAIN.fullmatch(value) else quote(value, safe="!#$&'()*+,/:;<=>?@[\\]^_`{|}~")


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
