"""Runs the code of transforms, which may take long or never return, in threads that the server can do without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

# So many threads may be lost to calls that do not return, with all the memory that they hold.
_MOST_LOST = 8


class TransformTimeoutError(Exception):
    """A call did not return in time; its thread was given up, and another takes its place."""


class TransformExecutor:
    """Runs functions, each in a daemon thread, so that one that never returns holds up neither others nor the end.

    All methods are called in the event loop.

    Args:
        at_once: Most calls that run at once; others wait. One that was given up counts no more.
        seconds: How long a call may take; 0 for as long as it takes.
    """

    def __init__(self, at_once: int, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._slots = asyncio.Semaphore(at_once)
        self._lost = 0

    @property
    def exhausted(self) -> bool:
        """Whether so many calls have not returned that no more should be begun."""
        return self._lost >= _MOST_LOST

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns.

        Raises:
            TransformTimeoutError: It has not returned in time.
            Exception: What it raises.
        """
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        call = _Call(future, self._slots.release)

        def expire() -> None:
            if call.finish(error=TransformTimeoutError()):
                self._lost += 1
                call.ended = self._find_again

        timer = loop.call_later(self.seconds, expire) if self.seconds > 0 else None

        def work() -> None:
            result, error = None, None
            try:
                result = function(*arguments)
            except BaseException as raised:  # noqa: BLE001  whoever waits decides
                error = raised
            try:
                loop.call_soon_threadsafe(end, result, error)
            except RuntimeError:  # the loop has ended, and with it everyone who waited
                return

        def end(result: Any, error: BaseException | None) -> None:
            if timer is not None:
                timer.cancel()
            call.finish(result, error)
            call.ended()

        try:
            threading.Thread(target=work, name="transform", daemon=True).start()
        except RuntimeError as error:  # the process may have no more threads
            call.finish(error=error)
        return await future

    def _find_again(self) -> None:
        self._lost -= 1


class _Call:
    """A call whose result is taken once, by whoever comes first: its thread or its time limit."""

    def __init__(self, future: asyncio.Future[Any], release: Callable[[], None]) -> None:
        self._future = future
        self._release = release
        self._finished = False
        self.ended: Callable[[], None] = lambda: None

    def finish(self, result: Any = None, error: BaseException | None = None) -> bool:
        """Give the slot back and answer; return False when that was done before."""
        if self._finished:
            return False
        self._finished = True
        self._release()
        if not self._future.done():  # cancelled: nobody waits any more
            if error is None:
                self._future.set_result(result)
            else:
                self._future.set_exception(error)
        return True
