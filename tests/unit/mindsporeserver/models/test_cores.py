"""Where graphs are computed, on real threads of this process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mindsporeserver.models.cores import Cores

ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two cores that this process may use: ask the scheduler")


class Worker:
    """A thread that waits, with a name as the kernel knows it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = threading.Event()
        self._end = threading.Event()
        self.id = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(30)

    def _run(self) -> None:
        self.id = threading.get_native_id()
        Path(f"/proc/self/task/{self.id}/comm").write_text(self._name)
        self._started.set()
        self._end.wait(300)

    def read_cores(self) -> set[int]:
        return os.sched_getaffinity(self.id)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture
def workers() -> Iterator[tuple[Worker, Worker]]:
    """Return a thread of MindSpore's pool and one that is none of it."""
    pair = (Worker("KernelThread_0"), Worker("http"))
    yield pair
    for worker in pair:
        worker.end()


@pytest.fixture(autouse=True)
def _unconfined() -> Iterator[None]:
    yield
    os.sched_setaffinity(0, ALL)


def be_quick() -> None:
    pass


def be_slow() -> None:
    time.sleep(0.03)


def run_calls(cores: Cores, calls: list[tuple[str, Callable[[], None]]]) -> None:
    for graph, compute in calls:
        cores.place(graph, compute)


def test_a_small_graph_and_the_pool_share_a_core(workers: tuple[Worker, Worker]) -> None:
    pool, other = workers
    cores = Cores()
    cores.place("small", be_quick)
    assert cores.confined
    assert len(pool.read_cores()) == 1
    assert os.sched_getaffinity(0) == pool.read_cores()
    assert other.read_cores() == ALL


@pytest.mark.parametrize("order", [("small", "large"), ("large", "small")])
def test_one_large_graph_frees_all_until_it_has_gone(workers: tuple[Worker, Worker], order: tuple[str, ...]) -> None:
    pool, _ = workers
    cores = Cores()
    computes = {"small": be_quick, "large": be_slow}
    run_calls(cores, [(name, computes[name]) for name in order])
    assert not cores.confined
    assert (pool.read_cores(), os.sched_getaffinity(0)) == (ALL, ALL)
    cores.forget("large")
    assert cores.confined
    assert len(pool.read_cores()) == 1
    cores.forget("small")
    assert (pool.read_cores(), os.sched_getaffinity(0)) == (ALL, ALL)


def test_threads_that_were_started_on_the_core_get_the_others_too() -> None:
    cores = Cores()
    cores.place("small", be_quick)
    child = Worker("compile")
    try:
        assert len(child.read_cores()) == 1
        cores.forget("small")
        assert child.read_cores() == ALL
    finally:
        child.end()


def write_schedule(tasks: Path, ran: int, waited: int) -> None:
    task = tasks / str(threading.get_native_id())
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"{ran} {waited} 1\n")
    (task / "comm").write_text("graph\n")


@pytest.mark.parametrize(("waited", "moves"), [(300, True), (100, False)])
def test_a_busy_core_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: int, moves: bool) -> None:
    monkeypatch.setattr("mindsporeserver.models.cores._LOOK_SECONDS", 0.0)
    write_schedule(tmp_path, 0, 0)
    cores = Cores(tmp_path)
    cores.place("small", be_quick)
    before = os.sched_getaffinity(0)
    write_schedule(tmp_path, 1000, waited)
    cores.follow_load()
    assert (os.sched_getaffinity(0) != before) == moves
    assert len(os.sched_getaffinity(0)) == 1


def test_without_proc_nothing_fails(tmp_path: Path) -> None:
    cores = Cores(tmp_path / "none")
    cores.place("small", be_quick)
    cores.follow_load()
    cores.forget("small")
