"""Delays between retries, for tenacity; both are imported on use: tenacity's import takes 0.05 s."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState


def wait_with_jitter(first: float, longest: float) -> Callable[[RetryCallState], float]:
    """Return a `wait` of exponential backoff whose jitter keeps clients from retrying in step.

    An error's attribute `retry_after`, the seconds that a server demands, is the shortest delay.

    Args:
        first: Longest first delay in seconds; each further one is twice as long.
        longest: Longest delay in seconds.
    """
    from tenacity import wait_exponential

    wait = wait_exponential(multiplier=first, max=longest)

    def get_delay(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        demanded = getattr(error, "retry_after", None) or 0.0
        return max(wait(state) * random.uniform(0.5, 1.0), demanded + random.uniform(0, 0.1) if demanded else 0.0)

    return get_delay
