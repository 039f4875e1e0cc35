"""Jobs that wait for a look: each at most once, each with one worker at most, some of them later or last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from kfp_mindspore.operator.store import Key

_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 60.0
_LONGEST_DEFERRAL_SECONDS = 30.0


@dataclass
class _Turn:
    """What a worker does with a key.

    Attributes:
        deferred_since: When the key was deferred first; None when it never was.
        is_last: Whether others go before it.
        is_put_off: Whether it comes again.
    """

    deferred_since: float | None = None
    is_last: bool = False
    is_put_off: bool = False


class WorkQueue:
    """A queue of keys for one event loop.

    A key that is added while it waits is not added again; one that is added while a worker has it comes back when that
    worker is done. One that a worker defers comes back when no other waits; as long as workers have others, it is alone
    with one of them, so that it takes little from those.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Key, float] = OrderedDict()
        self._deferred: OrderedDict[Key, float] = OrderedDict()
        self._taken: dict[Key, _Turn] = {}
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
        """Let a key that a worker has come back after others, or after 30 s; False when its turn is now."""
        turn = self._taken[key]
        if turn.deferred_since is None:
            turn.deferred_since = asyncio.get_running_loop().time()
        turn.is_last = True
        turn.is_put_off = not _is_overdue(turn.deferred_since) and not self._has_room_behind(turn)
        return turn.is_put_off

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
        while (key := self._pick()) is None:
            self._wakeup.clear()
            await self._wakeup.wait()
        time = asyncio.get_running_loop().time()
        since = self._waiting.pop(key, None)
        self._taken[key] = _Turn(self._deferred.pop(key, None), is_last=since is None)
        return key, 0.0 if since is None else time - since

    def done(self, key: Key) -> None:
        """Give a key back."""
        turn = self._taken.pop(key)
        if turn.is_put_off and turn.deferred_since is not None:
            self._deferred[key] = turn.deferred_since
            if turn.deferred_since < next(iter(self._deferred.values())):
                self._deferred.move_to_end(key, last=False)
        if self._deferred:
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

    def _pick(self) -> Key | None:
        if self._closed:
            return None
        first = next(iter(self._deferred), None)
        if first is not None and (_is_overdue(self._deferred[first]) or self._has_room_behind()):
            return first
        return next(iter(self._waiting), None)

    def _has_room_behind(self, turn: _Turn | None = None) -> bool:
        """Tell whether it is the turn of the last: nobody waits, and not two of them beside others."""
        others = [other.is_last for other in self._taken.values() if other is not turn]
        return not self._waiting and (all(others) or not any(others))

    def _fire(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)


def _is_overdue(since: float) -> bool:
    return asyncio.get_running_loop().time() - since >= _LONGEST_DEFERRAL_SECONDS
