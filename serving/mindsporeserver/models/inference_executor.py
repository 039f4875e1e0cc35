"""The one thread that all graphs of a process share: GraphCell is not thread-safe, and compiling is global."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from mindsporeserver.models.cores import Cores

Result = TypeVar("Result")


class InferenceExecutor:
    """Runs what is put, in order. Long work is put in pieces, so that models take turns.

    The thread starts with the first piece, and does not keep the process alive.

    Args:
        cores: Where the thread and MindSpore's own run.
    """

    def __init__(self, cores: Cores | None = None) -> None:
        self.cores = cores or Cores()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, work: Callable[[], None]) -> None:
        """Queue work that raises nothing; from one thread only, and from within work."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="graph", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Queue a call and return its future."""
        future: Future[Result] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001  whoever waits for the future decides
                future.set_exception(error)
            else:
                future.set_result(result)

        self.put(work)
        return future

    def is_busy(self) -> bool:
        """Tell whether more work is waiting."""
        return not self._queue.empty()

    def is_alive(self) -> bool:
        """Tell whether work is done, or could be."""
        return self._thread is None or self._thread.is_alive()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """End the thread once what is queued is done."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            self.cores.follow_load()
