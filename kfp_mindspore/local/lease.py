"""A lease: what a foreground run holds for as long as it lives, so that what it started ends with it.

Only the standard library is imported here, as in `process`, for the sake of supervisors' start.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.settings import LEASE_VARIABLE


class Lease:
    """What a foreground run holds for as long as it lives: a locked file, which the kernel unlocks when it dies.

    Supervisors that are started with the lease in their environment end their children when it is no longer held.

        with Lease.hold(directory / "lease") as lease:
            client.create_job(job)     # with lease.environment in os.environ

    Args:
        path: The file.
        descriptor: The open and locked file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def hold(cls, path: Path) -> Lease:
        """Take a lease.

        Args:
            path: A file that is made when missing, and removed on release.

        Raises:
            KfpMindSporeError: Another process holds it.
        """
        path = Path(path).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise KfpMindSporeError(f"{path}: the lease is held by another process") from None
            raise
        return cls(path, descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """The variable that names this lease to the processes started under it."""
        return {LEASE_VARIABLE: str(self.path)}

    def release(self) -> None:
        """Give the lease up: what was started under it ends. Idempotent."""
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_lease_held(path: Path | str) -> bool:
    """Tell whether the holder of a lease is alive."""
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
