"""The one thread for all graphs in a process: GraphCell is not thread-safe, and compiling is global."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class InferenceExecutor:
    """Runs calls in order, in a daemon thread that starts with the first one.

    Long work, such as loading, is queued in pieces, between which other models compute.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, work: Callable[[], None]) -> None:
        """Queue a function that raises nothing; called in one thread, and by queued functions."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="graph", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Queue a call and return the future."""
        future: Future[Result] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001  raised again by the future
                future.set_exception(error)
            else:
                future.set_result(result)

        self.put(work)
        return future

    def is_busy(self) -> bool:
        """Return whether more calls are queued."""
        return not self._queue.empty()

    def is_alive(self) -> bool:
        """Return whether calls are run, or would be."""
        return self._thread is None or self._thread.is_alive()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """End the thread once all queued calls are done."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
