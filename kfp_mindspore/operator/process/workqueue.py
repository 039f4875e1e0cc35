"""A deduplicating job queue with delays: each key waits at most once and has at most one worker."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from kfp_mindspore.operator.process.store import JobKey

_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 60.0


class WorkQueue:
    """A key queue for one event loop.

    A key that is added while it waits is not added again; one that is added while a worker has it comes back when that
    worker is done.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[JobKey, float] = OrderedDict()
        self._active: set[JobKey] = set()
        self._again: set[JobKey] = set()
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._failures: dict[JobKey, int] = {}
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def timers(self) -> int:
        """How many keys are added at a later time."""
        return len(self._timers)

    @property
    def active(self) -> int:
        """How many keys workers have."""
        return len(self._active)

    def add(self, key: JobKey) -> None:
        """Queue a key."""
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().time()
            self._wakeup.set()

    def add_later(self, key: JobKey, seconds: float) -> None:
        """Add a key after a delay; the earliest wins."""
        loop = asyncio.get_running_loop()
        time = loop.time() + max(0.0, seconds)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= time:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(time, self._fire, key)

    def retry(self, key: JobKey) -> float:
        """Add a key after a delay that doubles with each failure in a row; return the delay in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10))
        self.add_later(key, seconds)
        return seconds

    def reset_failures(self, key: JobKey) -> None:
        """Start again with the shortest delay."""
        self._failures.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """Drop a key's timer and failures once the job is gone."""
        self._failures.pop(key, None)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    async def get(self) -> tuple[JobKey, float]:
        """Wait for a key; return it with the seconds for which it was queued. `done` gives it back."""
        while self._closed or not self._waiting:
            self._wakeup.clear()
            await self._wakeup.wait()
        key, since = self._waiting.popitem(last=False)
        self._active.add(key)
        return key, asyncio.get_running_loop().time() - since

    def done(self, key: JobKey) -> None:
        """Give a key back."""
        self._active.discard(key)
        if not self._active:
            self._idle.set()
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Return no more keys from `get`."""
        self._closed = True

    async def drain(self) -> None:
        """Wait until workers have given back all their keys; after `close`."""
        while self._active:
            self._idle.clear()
            await self._idle.wait()

    def _fire(self, key: JobKey) -> None:
        self._timers.pop(key, None)
        self.add(key)
