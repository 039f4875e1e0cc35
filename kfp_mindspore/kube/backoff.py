"""Exponential backoff with jitter and a total timeout."""

from __future__ import annotations

import asyncio
import math
import random
import time

from kfp_mindspore.kube.errors import UnreachableError


class Backoff:
    """Delays between retries; each about twice as long as the one before.

    Args:
        retry_timeout: Seconds after the first failure at which retrying ends.
        first: First delay in seconds.
        longest: Longest delay in seconds.
    """

    def __init__(self, retry_timeout: float = math.inf, *, first: float = 0.1, longest: float = 5.0) -> None:
        self.retry_timeout = retry_timeout
        self._first = first
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        """Start again, after a success."""
        self._next = self._first
        self._failing_since: float | None = None

    def next_delay(self) -> float:
        """Return the next delay in seconds, with jitter so that clients do not retry in step."""
        delay = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, self._longest)
        return delay

    async def wait(self, reason: str, retry_after: float | None = None) -> None:
        """Sleep before the next try.

        Args:
            reason: What failed, for the error message.
            retry_after: Seconds that the server demands instead of the next delay.

        Raises:
            UnreachableError: The retry timeout would be exceeded.
        """
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        delay = self.next_delay() if retry_after is None else retry_after + random.uniform(0, 0.1)
        if now + delay - self._failing_since > self.retry_timeout:
            raise UnreachableError(f"{reason} (for {self.retry_timeout:g} s)")
        await asyncio.sleep(delay)
