"""On which cores graphs are computed: small ones on a single core, all others wherever the kernel puts them.

MindSpore splits most operators among threads of its own, whatever their size. They wait for each other by `sched_yield`
in a loop: for a small graph that takes more time than is computed, on cores that the event loop and other processes
need. Threads that share a core yield to whoever has something to do. No setting of MindSpore 2.9 turns them off.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path

# What MindSpore calls the threads of its pool.
_POOL = ("ActorThread", "KernelThread")
# A graph is small when its largest batch takes less: what several cores could save is less than what they cost.
_SMALL_SECONDS = 2e-3
# How much longer a call may take on one core than on all, for the cores that are free meanwhile; the seconds are noise.
_LONGER = 1.25
_LONGER_SECONDS = 1e-4
_CALLS = 15
_LOOK_SECONDS = 1.0
# A thread that waited for its core for this part of the time that it ran moves to another core.
_WAITED = 0.25


class Cores:
    """Where the graph thread and MindSpore's threads run; every method but the first is called in the graph thread.

    Args:
        tasks: The directory of this process' threads.
    """

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._small: dict[Hashable, bool] = {}
        self._allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        # Servers and workers that are started together begin on different cores.
        self._core = self._allowed[os.getpid() % len(self._allowed)] if self._allowed else 0
        self._confined = False
        self._looked = 0.0
        self._ran = self._waited = 0

    @property
    def confined(self) -> bool:
        """Whether graphs are computed on a single core."""
        return self._confined

    def place(self, graph: Hashable, compute: Callable[[], object]) -> None:
        """Find out whether a graph is small, and place the threads as all graphs together need it.

        Args:
            graph: Anything that stands for it, until `forget`.
            compute: Computes its largest batch, which is compiled already.
        """
        if len(self._allowed) < 2:
            return
        self._release()
        free = _measure(compute)
        small = free < _SMALL_SECONDS
        if small:
            self._confine()
            small = _measure(compute) < free * _LONGER + _LONGER_SECONDS
        self._small[graph] = small
        self._settle()

    def forget(self, graph: Hashable) -> None:
        """Place the threads without a graph that has gone."""
        if self._small.pop(graph, None) is not None:
            self._settle()

    def follow_load(self) -> None:
        """Move to another core, about once a second, when something else keeps this one busy."""
        if not self._confined:
            return
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        ran, waited = self._read_schedule()
        busy = waited - self._waited > _WAITED * (ran - self._ran)
        self._ran, self._waited = ran, waited
        if busy:
            self._core = random.choice([core for core in self._allowed if core != self._core])
            self._confine()

    def _settle(self) -> None:
        if self._small and all(self._small.values()):
            self._confine()
        else:
            self._release()

    def _confine(self) -> None:
        own = threading.get_native_id()
        for task in self._list_tasks():
            if task == own or self._read_name(task).startswith(_POOL):
                _set_cores(task, {self._core})
        self._confined = True

    def _release(self) -> None:
        if not self._confined:
            return
        allowed = set(self._allowed)
        for task in self._list_tasks():
            # All that were started meanwhile have inherited the one core.
            if task == threading.get_native_id() or _get_cores(task) == {self._core}:
                _set_cores(task, allowed)
        self._confined = False

    def _list_tasks(self) -> list[int]:
        try:
            return [int(entry.name) for entry in self._tasks.iterdir()]
        except OSError:
            return []

    def _read_name(self, task: int) -> str:
        try:
            return (self._tasks / str(task) / "comm").read_text()
        except OSError:
            return ""

    def _read_schedule(self) -> tuple[int, int]:
        """Return how many nanoseconds this thread ran and waited for its core."""
        try:
            ran, waited, _ = (self._tasks / str(threading.get_native_id()) / "schedstat").read_text().split()
        except (OSError, ValueError):
            return self._ran, self._waited
        return int(ran), int(waited)


def _measure(compute: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some calls, or of the first when it takes long."""
    least = float("inf")
    for _ in range(_CALLS):
        start = time.perf_counter()
        compute()
        least = min(least, time.perf_counter() - start)
        if least > 10 * _SMALL_SECONDS:
            break
    return least


def _get_cores(task: int) -> set[int]:
    try:
        return os.sched_getaffinity(task)
    except OSError:
        return set()


def _set_cores(task: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(task, cores)
    except OSError:
        # The thread has ended, or the core was taken away from this process: then the kernel has placed it already.
        return
