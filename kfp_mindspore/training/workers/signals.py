"""SIGTERM during training: recorded, and handled between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

EXIT_CODE = 128 + signal.SIGTERM


class Termination:
    """Within the block SIGTERM only sets `requested`; the previous handler is restored after it.

    Outside the main thread Python allows no handler, and `requested` stays False.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
