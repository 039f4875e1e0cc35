"""This machine's cores."""

from __future__ import annotations

import os


def list_cores() -> list[int]:
    """Return the numbers of the cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
