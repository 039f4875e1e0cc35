"""Signals as exceptions, so that a terminated process cleans up."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Interrupts:
    """Converts SIGTERM into SystemExit(143) within a block; `held` defers it and SIGINT.

    Has no effect outside the main thread.
    """

    def __init__(self) -> None:
        self._held = False
        self._pending: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals until `raise_pending`, which may also be called within the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def raise_pending(self) -> None:
        """Raise the deferred signal."""
        if self._pending is not None:
            self._raise(self._pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def clean_up_on_sigterm(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose `except` and `finally` blocks also run when the process is terminated."""

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        with Interrupts():
            return function(*args, **options)

    return run
