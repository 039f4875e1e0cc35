"""A lease: a file locked by a foreground run; supervisors terminate their children when the lock is released."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.settings import LEASE_VARIABLE

if TYPE_CHECKING:
    from filelock import BaseFileLock


class Lease:
    """A locked file; the kernel releases the lock when the holder dies, `kill -9` included.

        with Lease.hold(directory / "lease") as lease:
            client.create_job(job)     # with lease.environment in os.environ

    Args:
        path: The file.
        lock: The lock on it, acquired.
    """

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.path = path
        self._lock: BaseFileLock | None = lock

    @classmethod
    def hold(cls, path: Path) -> Lease:
        """Acquire a lease.

        Args:
            path: The file; created when missing, deleted on release.

        Raises:
            KfpMindSporeError: Another process holds it.
        """
        # Imported here: supervisors only check leases, and start faster without it.
        from filelock import FileLock, Timeout

        path = Path(path).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise KfpMindSporeError(f"{path}: the lease is held by another process") from None
        return cls(path, lock)

    @property
    def environment(self) -> dict[str, str]:
        """The variable that names this lease to processes started under it."""
        return {LEASE_VARIABLE: str(self.path)}

    def release(self) -> None:
        """Release the lease: processes started under it are terminated. Idempotent."""
        if self._lock is not None:
            self.path.unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_lease_held(path: Path | str) -> bool:
    """Return whether a lease's holder is alive.

    Not by filelock, which creates a missing file and the directory, and whose exclusive lock two checks at a time would
    take for the holder's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
