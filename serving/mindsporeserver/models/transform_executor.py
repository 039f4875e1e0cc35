"""Transform execution: the code may take long or never return, hence it runs in threads that can be abandoned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

# Threads that may be abandoned, with all the memory that they hold, before further calls are refused.
_MAX_ABANDONED = 8


class TransformTimeoutError(Exception):
    """A call did not return in time; the thread was abandoned."""


class TransformExecutor:
    """Runs each call in its own daemon thread, which delays neither other calls nor the process's end.

    concurrent.futures joins the threads at exit, and would wait for a call that never returns. All methods are called
    in the event loop.

    Args:
        concurrency: Calls that run at once, without abandoned ones; others wait.
        seconds: Call timeout; 0 for none.
    """

    def __init__(self, concurrency: int, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._slots = asyncio.Semaphore(concurrency)
        self._abandoned = 0

    @property
    def exhausted(self) -> bool:
        """Whether so many calls have not returned that further calls should be refused."""
        return self._abandoned >= _MAX_ABANDONED

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a function's result.

        Raises:
            TransformTimeoutError: It did not return in time.
            Exception: Any exception from the function.
        """
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            result, error = None, None
            try:
                result = function(*arguments)
            except BaseException as raised:  # noqa: BLE001  raised again by the caller
                error = raised
            try:
                loop.call_soon_threadsafe(finish, result, error)
            except RuntimeError:  # the event loop is closed
                return

        def finish(result: Any, error: BaseException | None) -> None:
            if error is None:
                returned.set_result(result)
            else:
                returned.set_exception(error)

        await self._slots.acquire()
        try:
            threading.Thread(target=work, name="transform", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            self._slots.release()
            raise
        call = asyncio.ensure_future(self._wait(returned))
        # A cancelled caller leaves the call running: its thread keeps the slot until it returns or is abandoned.
        return await asyncio.shield(call)

    async def _wait(self, returned: asyncio.Future[Any]) -> Any:
        try:
            done, _ = await asyncio.wait([returned], timeout=self.seconds or None)
        finally:
            self._slots.release()
        if done:
            return returned.result()
        self._abandoned += 1
        returned.add_done_callback(self._reclaim)
        raise TransformTimeoutError

    def _reclaim(self, returned: asyncio.Future[Any]) -> None:
        self._abandoned -= 1
        # No caller awaits it: without this, asyncio logs its exception as never retrieved.
        returned.exception()
