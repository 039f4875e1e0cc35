"""Ends a watch or a log that another thread reads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class Stop:
    """A switch that ends the streams that are read under it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: list[Any] = []
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """End them, now and for ever."""
        with self._lock:
            self._event.set()
            for stream in self._streams:
                _shut(stream)

    def wait(self, seconds: float) -> bool:
        """Pause for so long at most; return whether it is set."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def guard(self, stream: Any) -> Iterator[None]:
        """Hold a urllib3 response for the length of a block."""
        with self._lock:
            self._streams.append(stream)
            if self._event.is_set():
                _shut(stream)
        try:
            yield
        finally:
            with self._lock:
                self._streams.remove(stream)


def _shut(stream: Any) -> None:
    # It may have ended by itself.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        stream.shutdown()
