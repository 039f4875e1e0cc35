"""Log files that are still written: their last lines, what is new, and following them to the end.

Only the standard library is imported here, as in `process`, for the sake of supervisors' start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_BLOCK_BYTES = 1 << 16


def read_last_lines(path: Path | str, count: int) -> list[str]:
    """Return the last lines of a log that are not empty, oldest first.

    Args:
        path: The file; a missing one has no lines.
        count: How many lines at most.
    """
    if count <= 0:
        return []
    try:
        with Path(path).open("rb") as file:
            position = file.seek(0, os.SEEK_END)
            data = b""
            # What stands before the first end may be part of a line only.
            while position > 0 and sum(map(bool, data.split(b"\n")[1:])) < count:
                size = min(_BLOCK_BYTES, position)
                position = file.seek(position - size)
                data = file.read(size) + data
    except FileNotFoundError:
        return []
    return [_decode(line) for line in data.split(b"\n") if line][-count:] if data else []


class LogReader:
    """Reads the lines that were added to a log since the last call; the file may not exist yet.

    A file that was emptied, or replaced by another, is read from its start.

    Args:
        path: The file.
        limit: Longest line in bytes; a longer one is handed out in pieces.
    """

    def __init__(self, path: Path | str, *, limit: int = 1 << 20) -> None:
        self.path = Path(path)
        self._limit = limit
        self._file: tuple[int, int] | None = None
        self._position = 0
        self._rest = b""

    def read(self, *, final: bool = False) -> list[str]:
        """Return the new lines, without their ends.

        Args:
            final: Nobody writes any more: also return a last line that has no end.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if self._file not in (None, identity) or status.st_size < self._position:
                    # A line that was cut off here has no other end.
                    self._position, self._rest = 0, self._rest and self._rest + b"\n"
                self._file = identity
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            data = b""
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (final or len(self._rest) > self._limit):
            lines.append(self._rest)
            self._rest = b""
        return [_decode(line) for line in lines]


def follow_lines(path: Path | str, is_over: Callable[[], bool], *, poll_seconds: float = 0.05) -> Iterator[str]:
    """Yield the lines of a log as they are written.

    Args:
        path: The file; it may not exist yet.
        is_over: Tells that nobody writes any more; what was written until then is still yielded.
        poll_seconds: Pause between looks, in seconds.
    """
    reader = LogReader(path)
    while True:
        over = is_over()
        yield from reader.read(final=over)
        if over:
            return
        time.sleep(poll_seconds)


def _decode(line: bytes) -> str:
    # A progress bar rewrites its line: what a terminal would show is what follows the last carriage return.
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
