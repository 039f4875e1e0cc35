"""What workers share of the machine: the directory of their metrics, and its cores."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kfp_mindspore.errors import UserError
from kfp_mindspore.local.lease import Lease, is_lease_held

_PREFIX = "mindsporeserver-"
_LEASE = "lease"
_LOCK = "lock"
# Kinds of metrics whose values add up; gauges of the dead are dropped.
_SUMMED = ("counter", "histogram", "summary")
# Each of these libraries starts a thread for every core of the machine, in every worker.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def hold_metrics_directory() -> Iterator[Path]:
    """Yield an empty private directory, removed at the end; what killed parents left behind is removed too.

    Raises:
        UserError: There is no place for temporary files.
    """
    # Memory where possible: workers write there with every request, and it is writable on a read-only root.
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise UserError(
            f"no place for the metrics of --workers: {error.strerror or error}",
            hint="Mount a writable /tmp or /dev/shm, or set TMPDIR.",
        ) from error
    try:
        with Lease.hold(directory / _LEASE):
            _sweep(directory)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def read_metrics(directory: Path) -> Iterator[None]:
    """Keep `fold_metrics` from moving values between files while they are read in this block."""
    with _open_lock(directory) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def fold_metrics(directory: Path, pid: int) -> bool:
    """Add what a dead worker counted to what all dead ones did, and remove its files: restarts cost no space.

    Args:
        directory: The workers' PROMETHEUS_MULTIPROC_DIR.
        pid: The dead worker's process number.

    Returns:
        Whether it was done; when not, since a worker is reading or space is short, it can be tried again.
    """
    # 0.1 s and 8 MB, only once a worker ended.
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import mark_process_dead

    with _open_lock(directory) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        mark_process_dead(pid, str(directory))  # type: ignore[no-untyped-call]
        for kind in _SUMMED:
            source = directory / f"{kind}_{pid}.db"
            if not source.exists():
                continue
            total, fresh = directory / f"{kind}_dead.db", directory / f"{kind}_dead.tmp"
            # A mapped file without blocks on a full disk would end this process by SIGBUS.
            needed = 2 * sum(file.stat().st_size for file in (source, total) if file.exists())
            status = os.statvfs(directory)
            if status.f_bavail * status.f_frsize < needed:
                return False
            if source.stat().st_size:
                fresh.unlink(missing_ok=True)
                if total.exists():
                    shutil.copyfile(total, fresh)
                sums = MmapedDict(str(fresh))  # type: ignore[no-untyped-call]
                for key, value, time, _ in MmapedDict.read_all_values_from_file(str(source)):  # type: ignore[no-untyped-call]
                    sums.write_value(key, sums.read_value(key)[0] + value, time)  # type: ignore[no-untyped-call]
                sums.close()  # type: ignore[no-untyped-call]
                fresh.replace(total)
            source.unlink()
    return True


@contextlib.contextmanager
def _open_lock(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sweep(own: Path) -> None:
    for other in own.parent.glob(f"{_PREFIX}*"):
        lease = other / _LEASE
        # Without a lease it is younger than this line.
        with contextlib.suppress(OSError):
            if other != own and lease.exists() and not is_lease_held(lease):
                shutil.rmtree(other, ignore_errors=True)


def share_cores(workers: int, environment: Mapping[str, str], cores: float | None = None) -> dict[str, str]:
    """Return the variables that give each worker its share of the cores, without those that are set already.

    Args:
        workers: How many share them.
        environment: What is set.
        cores: How many there are; default what `count_cores` says.
    """
    share = max(1, int((count_cores() if cores is None else cores) / workers))
    return {name: str(share) for name in _THREADS if name not in environment}


def count_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return how many cores this process may use: by its affinity and by the quota of its container.

    Args:
        limit: The control group's file, `QUOTA PERIOD` in microseconds or `max PERIOD`.
    """
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = limit.read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores
