"""Log files that are still being written: their last lines, and the lines added since the last read."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK_BYTES = 1 << 16


def read_last_lines(path: Path | str, count: int) -> list[str]:
    """Return a log's last non-empty lines, oldest first.

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
            # The first piece may be a line's rest.
            while position > 0 and sum(map(bool, data.split(b"\n")[1:])) < count:
                size = min(_BLOCK_BYTES, position)
                position = file.seek(position - size)
                data = file.read(size) + data
    except FileNotFoundError:
        return []
    return [_decode(line) for line in data.split(b"\n") if line][-count:] if data else []


class LogReader:
    """Reads the lines added to a log since the last call; the file may not exist yet.

    A truncated or replaced file is read from the start.

    Args:
        path: The file.
        limit: Longest line in bytes; a longer one is returned in pieces.
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
            final: Also return a last line without line end, since the file is complete.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if self._file not in (None, identity) or status.st_size < self._position:
                    # A truncated line's rest counts as a line.
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


def _decode(line: bytes) -> str:
    # A progress bar rewrites its line: a terminal shows the text after the last carriage return.
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
