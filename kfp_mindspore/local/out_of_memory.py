"""Kills by the kernel's OOM killer on this machine."""

from __future__ import annotations

from pathlib import Path

# Between the kernel's kill and the exit when a process has to free its memory.
_RECENT_SECONDS = 5.0


class OomKills:
    """The kernel's OOM kill count; a killed process itself shows only SIGKILL.

    The number includes kills in every control group. Kernels before 4.13 and other systems do not count them.
    """

    def __init__(self) -> None:
        self._count = _read_count()
        self._time = float("-inf")

    def is_recent(self, now: float) -> bool:
        """Update the number; return whether it has increased within the last five seconds. Call it at each poll.

        Args:
            now: time.monotonic().
        """
        count = _read_count()
        if count != self._count:
            self._count, self._time = count, now
        return now - self._time < _RECENT_SECONDS


def _read_count() -> str:
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("\noom_kill ")[2].partition("\n")[0]
