"""Epoch seconds by activity."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

ACTIVITIES = ("data", "step", "evaluation", "checkpoint")


class Profile:
    """Total wall-clock time by activity: data, step, evaluation and checkpoint."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Add the block's time to an activity."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - begun

    def round(self) -> dict[str, float]:
        """Return the sums in seconds, rounded to 0.1 ms."""
        return {name: round(value, 4) for name, value in self.seconds.items()}
