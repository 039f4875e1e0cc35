"""Exponential backoff in loops that start again after a success, such as watches."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from kfp_mindspore.kube.errors import UnreachableError
from kfp_mindspore.retries import wait_with_jitter

if TYPE_CHECKING:
    from tenacity import AttemptManager


class _FailedError(Exception):
    def __init__(self, retry_after: float | None) -> None:
        super().__init__()
        self.retry_after = retry_after


class Backoff:
    """Delays between retries by tenacity; `reset` starts again.

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
        self._attempts: AsyncIterator[AttemptManager] | None = None

    async def wait(self, reason: str, retry_after: float | None = None) -> None:
        """Sleep before the next try.

        Args:
            reason: What failed, for the error message.
            retry_after: Seconds that the server demands.

        Raises:
            UnreachableError: The retry timeout would be exceeded.
        """
        from tenacity import AsyncRetrying, RetryError, stop_before_delay

        if self._attempts is None:
            # Its clock starts at the first failure: a request may have taken longer than the timeout.
            retrying = AsyncRetrying(
                sleep=asyncio.sleep,
                stop=stop_before_delay(self.retry_timeout),
                wait=wait_with_jitter(self._first, self._longest),
            )
            self._attempts = aiter(retrying)
            self._attempt = await anext(self._attempts)
        failure = _FailedError(retry_after)
        self._attempt.retry_state.set_exception((_FailedError, failure, None))
        try:
            self._attempt = await anext(self._attempts)
        except RetryError:
            raise UnreachableError(f"{reason} (for {self.retry_timeout:g} s)") from None
