"""Jobs that wait for a look: each at most once, each with one worker at most, some of them later or last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from kfp_mindspore.operator.store import Key

_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 60.0
_LONGEST_DEFERRAL_SECONDS = 30.0


class WorkQueue:
    """A queue of keys for one event loop.

    A key that is added while it waits is not added again; one that is added while a worker has it comes back when that
    worker is done.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Key, float] = OrderedDict()
        self._deferred: OrderedDict[Key, float] = OrderedDict()
        # Of keys that workers have: since when they have been deferred, and which of them are again.
        self._deferred_since: dict[Key, float] = {}
        self._put_off: set[Key] = set()
        self._taken: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._deferred)

    @property
    def timers(self) -> int:
        """How many keys come at a later time."""
        return len(self._timers)

    @property
    def active(self) -> int:
        """How many keys workers have."""
        return len(self._taken)

    def add(self, key: Key) -> None:
        """Let a worker look at a key as soon as one is free."""
        if key in self._taken:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().time()
            self._wakeup.set()

    def add_later(self, key: Key, seconds: float) -> None:
        """Add a key after a while; of several times the earliest holds."""
        loop = asyncio.get_running_loop()
        time = loop.time() + max(0.0, seconds)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= time:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(time, self._fire, key)

    def defer(self, key: Key) -> bool:
        """Let a key that a worker has come back when no other waits, or after 30 s; False when this has come."""
        time = asyncio.get_running_loop().time()
        since = self._deferred_since.setdefault(key, time)
        if not self._waiting or time - since >= _LONGEST_DEFERRAL_SECONDS:
            return False
        self._put_off.add(key)
        return True

    def retry(self, key: Key) -> float:
        """Add a key after a pause that doubles with each failure in a row; return the pause in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10))
        self.add_later(key, seconds)
        return seconds

    def forget_failures(self, key: Key) -> None:
        """Begin with the shortest pause again."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """Let no timer come for a key whose job is gone."""
        self._failures.pop(key, None)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    async def get(self) -> tuple[Key, float]:
        """Wait for a key and take it; return it with the seconds it has waited. `done` gives it back."""
        while not (self._waiting or self._deferred) or self._closed:
            self._wakeup.clear()
            await self._wakeup.wait()
        time = asyncio.get_running_loop().time()
        oldest = next(iter(self._deferred.values()), time)
        lane = self._waiting if self._waiting and time - oldest < _LONGEST_DEFERRAL_SECONDS else self._deferred
        key = next(iter(lane))
        waits_since, deferred_since = self._waiting.pop(key, time), self._deferred.pop(key, None)
        if deferred_since is not None:
            self._deferred_since[key] = deferred_since
        self._taken.add(key)
        return key, time - waits_since

    def done(self, key: Key) -> None:
        """Give a key back."""
        self._taken.discard(key)
        since = self._deferred_since.pop(key, None)
        if key in self._put_off and since is not None:
            self._put_off.discard(key)
            self._deferred[key] = since
            if since < next(iter(self._deferred.values())):
                self._deferred.move_to_end(key, last=False)
            self._wakeup.set()
        if not self._taken:
            self._idle.set()
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True

    async def drain(self) -> None:
        """Wait until workers have given back all that they have; after `close`."""
        while self._taken:
            self._idle.clear()
            await self._idle.wait()

    def _fire(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
