"""Log records to lines, text or JSON, and lines to a descriptor by a thread of their own.

A request never waits for whoever reads the log: when the reader is slow, lines are dropped and counted; when it is
gone, they are lost.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

CAPACITY = 10_000
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


def escape_controls(text: str) -> str:
    r"""Return text that stays on its line and moves no cursor: what is not printable becomes \x1b, \n or \u202e."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time as RFC 3339 in UTC with milliseconds."""
        seconds = int(record.created)
        return f"{_format_second(seconds)}.{int((record.created - seconds) * 1000):03d}Z"

    def read_message(self, record: logging.LogRecord) -> str:
        """Return the message; one whose arguments do not fit is no reason to fail whoever logged it."""
        try:
            return record.getMessage()
        except (TypeError, ValueError, KeyError):
            return f"{record.msg} {record.args!r}"

    def read_trace(self, record: logging.LogRecord) -> str:
        """Return the stack traces of a record, or nothing."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class TextFormatter(_Formatter):
    """`time level process logger message key=value …`; the lines of a stack trace are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line or lines."""
        line = (
            f"{self.formatTime(record)} {record.levelname} {record.process} {record.name} "
            f"{escape_controls(self.read_message(record))}"
        )
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields:
            line += "".join(f" {name}={_quote(value)}" for name, value in fields.items() if value not in ("", 0))
        if trace := self.read_trace(record):
            line += "".join(f"\n    {escape_controls(part)}" for part in trace.split("\n"))
        return line


class JsonFormatter(_Formatter):
    """One JSON object in ASCII: time, level, logger, process, message, a request's fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        value: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": self.read_message(record),
        }
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields:
            value.update(fields)
        if trace := self.read_trace(record):
            value["exception"] = trace
        line = _encode(value)
        return _encode(_drop_surrogates(value)) if "\\ud" in line else line


class LineHandler(logging.Handler):
    """Formats a record where it is logged and leaves the writing to a thread.

    Args:
        descriptor: Where lines are written.
        formatter: Text or JSON.
    """

    def __init__(self, descriptor: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._writer = LineWriter(descriptor, self._report_loss)

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and queue it."""
        self._writer.write(self.format(record))

    def flush(self) -> None:
        """Wait until all lines are written, for 2 s at most."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._writer.close()
        super().close()

    def _report_loss(self, count: int) -> str:
        text = f"{count} log lines were dropped: whoever reads the log was too slow"
        return self.format(logging.LogRecord("mindsporeserver", logging.WARNING, __file__, 0, text, None, None))


class LineWriter:
    """Writes lines to a descriptor by a thread.

    Args:
        descriptor: A pipe, file or terminal; it stays open.
        report_loss: Makes the line that tells how many were dropped.
        capacity: Lines that may wait.
    """

    def __init__(self, descriptor: int, report_loss: Callable[[int], str], capacity: int = CAPACITY) -> None:
        self._descriptor = descriptor
        self._report_loss = report_loss
        self._capacity = capacity
        self._dropped = 0
        # Its put and get run without Python code, a tenth of the price of queue.Queue's.
        self._queue: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mindsporeserver-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line without its end; never waits."""
        if self._queue.qsize() >= self._capacity:
            self._dropped += 1
        else:
            self._queue.put(line)

    def flush(self, seconds: float = 2.0) -> bool:
        """Wait until what was queued is written, and tell whether it was."""
        if not self._thread.is_alive():
            return False
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def close(self, seconds: float = 2.0) -> None:
        """Write what is queued and end the thread; a reader that stands still is waited for this long."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        ended = False
        while not ended:
            lines: list[str] = []
            waiting: list[threading.Event] = []
            item = self._queue.get()
            while True:
                if item is None:
                    ended = True
                elif isinstance(item, str):
                    lines.append(item)
                else:
                    waiting.append(item)
                if len(lines) == 1000 or self._queue.empty():
                    break
                item = self._queue.get()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(self._report_loss(dropped))
            for chunk in _pack(lines):
                self._write_all(chunk)
            for event in waiting:
                event.set()

    def _write_all(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                # Another process that shares the pipe made it non-blocking.
                select.select([], [self._descriptor], [], 1.0)
            except OSError:
                # Closed by its reader, or the disk is full, which may pass: this chunk is lost, the next is tried.
                return


def _pack(lines: list[str]) -> list[bytes]:
    """Join lines into pieces that a pipe takes whole, so that lines of other workers do not get between."""
    chunks: list[bytes] = []
    chunk = b""
    for line in lines:
        encoded = line.encode("utf-8", "backslashreplace") + b"\n"
        if chunk and len(chunk) + len(encoded) > select.PIPE_BUF:
            chunks.append(chunk)
            chunk = b""
        chunk += encoded
    return [*chunks, chunk] if chunk else chunks


def _quote(value: str | float) -> str:
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value):
        return value
    # A client's quotes must not end the value: what follows would read as another field.
    escaped = escape_controls(value.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}"'


def _drop_surrogates(value: dict[str, Any]) -> dict[str, Any]:
    # A lone surrogate, of a path or a header that is no UTF-8, would be an escape that strict readers refuse.
    return {
        name: item.encode("utf-8", "replace").decode() if isinstance(item, str) and not item.isascii() else item
        for name, item in value.items()
    }


_encode = json.JSONEncoder(separators=(",", ":")).encode


@lru_cache(maxsize=8)
def _format_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
