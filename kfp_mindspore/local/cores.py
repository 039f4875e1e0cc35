"""This machine's cores."""

from __future__ import annotations

import os
from pathlib import Path


def list_cores() -> list[int]:
    """Return the numbers of the cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def count_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return how many cores this process may use: by the affinity and by the container's quota.

    Args:
        limit: The control group's file, `QUOTA PERIOD` in microseconds or `max PERIOD`.
    """
    cores = float(len(list_cores()))
    try:
        quota, period = limit.read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores
