"""A run's checkpoints below a directory or a URI: lock, newest intact checkpoint, retention."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.files import read_boot_id
from kfp_mindspore.formats import checkpoint as checkpoints
from kfp_mindspore.formats.checkpoint import DESCRIPTION, Checkpoint
from kfp_mindspore.stores.artifact_store import ArtifactStore, StoreError, join_uri
from kfp_mindspore.stores.commit import is_checkpoint_name, order_deletions
from kfp_mindspore.stores.mirror import ArtifactMirror

LOCK_FILE = ".lock"
# A file server drops a dead node's locks when its lease ends: after 90 s with NFSv4.
_LEASE_SECONDS = 120.0
_POLL_SECONDS = 1.0
# A POSIX lock does not exclude its own process: the stores that it writes to, by process, device and inode.
_writers: dict[tuple[int, int, int], DirectoryStore] = {}
_logger = logging.getLogger(__name__)


class DirectoryStore:
    """Checkpoints in a directory.

    Args:
        root: The directory; created by `open_for_writing`.
        keep: How many of the newest checkpoints to keep.
    """

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self._keep = keep
        self._lock: int | None = None
        self._key: tuple[int, int, int] | None = None

    def open_for_writing(self) -> None:
        """Lock the directory against a second writer, and remove killed writers' temporary directories.

        Raises:
            UserError: Another run writes checkpoints there, or the directory cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._register()
            self._lock = _lock_file(self.root / LOCK_FILE)
        except OSError as error:
            raise UserError(f"{self.root}: cannot be used as a checkpoint directory ({error.strerror})") from error
        checkpoints.remove_leftovers(self.root)

    def _register(self) -> None:
        """Refuse a second run in this process: closing the lock file there would release the first run's lock."""
        stat = self.root.stat()
        # A forked process is another one.
        key = (os.getpid(), stat.st_dev, stat.st_ino)
        if _writers.setdefault(key, self) is not self:
            raise UserError(
                f"checkpoint_dir: {self.root} is in use by another run of this process",
                hint="Use another checkpoint directory for each run.",
            )
        self._key = key

    def get_latest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None; a broken one is skipped with a warning."""
        return checkpoints.get_latest_checkpoint(self.root)

    def locate(self, name: str) -> Path | str:
        """Return a checkpoint's path or URI."""
        return self.root / name

    def commit(self, path: Path) -> None:
        """Publish a checkpoint that was written to `root / name`, and delete the oldest ones."""
        checkpoints.prune_checkpoints(self.root, self._keep)

    def close(self) -> None:
        """Release the lock."""
        if self._key is not None:
            del _writers[self._key]
            self._key = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class UriStore(DirectoryStore):
    """Checkpoints below an object store's URI, written to and read from a temporary directory.

    They are committed by `stores.commit`'s protocol. Object stores have no locks: a second writer is refused when the
    first checkpoint is found.

    Args:
        uri: A URI that fsspec writes: s3://, gs://.
        keep: How many of the newest checkpoints to keep.

    Raises:
        UserError: fsspec has no implementation for the URI, or needs another package.
    """

    def __init__(self, uri: str, keep: int) -> None:
        self._uri = uri.rstrip("/")
        self._store = ArtifactStore.from_environment(os.environ)
        try:
            self._store.open(self._uri)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"checkpoint_dir: {uri} cannot be used ({error})",
                hint="s3 needs kfp-mindspore[artifacts], gs kfp-mindspore[gcs].",
            ) from error
        self._known: set[str] = set()
        self._temporary = tempfile.TemporaryDirectory(prefix="kfp-mindspore-checkpoints-")
        super().__init__(Path(self._temporary.name), keep)

    def open_for_writing(self) -> None:
        """Delete the files of checkpoints without a description: their upload was interrupted."""
        with _explain_failures():
            found = self._list()
            for name, files in found.items():
                if DESCRIPTION not in files:
                    self._delete(name, files)
        self._known = set(found)

    def get_latest(self) -> Checkpoint | None:
        """Download the newest intact checkpoint and return it, or None; a broken one is skipped with a warning."""
        with _explain_failures():
            found = self._list()
        for name in sorted(found, key=_order, reverse=True):
            if DESCRIPTION not in found[name]:
                continue
            target = self.root / name
            with _explain_failures():
                self._store.download(self.locate(name), target, sorted(found[name]))
            try:
                return Checkpoint.open(target)
            except UserError as error:
                _logger.warning("skipping a broken checkpoint: %s (%s)", self.locate(name), error.message)
                shutil.rmtree(target)
        return None

    def locate(self, name: str) -> str:
        """Return a checkpoint's URI."""
        return join_uri(self._uri, name)

    def commit(self, path: Path) -> None:
        """Upload a checkpoint, and delete the oldest ones there and the temporary copies.

        Raises:
            UserError: Another run has written a checkpoint below the URI.
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        name = path.name
        with _explain_failures():
            found = self._list()
            if strange := sorted(found.keys() - self._known):
                raise UserError(
                    f"checkpoint_dir: another run has written {self.locate(strange[-1])}",
                    hint="Use another checkpoint directory for each run.",
                )
            self._known.add(name)
            ArtifactMirror(self._store, path, self.locate(name), found.get(name, ())).sync(final=True)
            found[name] = {file.name for file in path.iterdir()}
            for old in sorted(found, key=_order, reverse=True)[self._keep :]:
                self._delete(old, found[old])
        for local in checkpoints.list_checkpoints(self.root):
            shutil.rmtree(local)

    def close(self) -> None:
        """Remove the temporary directory."""
        self._temporary.cleanup()

    def _list(self) -> dict[str, set[str]]:
        """Return each checkpoint's file names."""
        found: dict[str, set[str]] = {}
        for path in self._store.list_files(self._uri):
            name, _, file = path.partition("/")
            if is_checkpoint_name(name) and file:
                found.setdefault(name, set()).add(file)
        return found

    def _delete(self, name: str, files: set[str]) -> None:
        for file in order_deletions(files):
            self._store.delete(join_uri(self.locate(name), file))


@contextlib.contextmanager
def _explain_failures() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise KfpMindSporeError(
            str(error), hint="Checkpoints there are intact. Check the URI, the credentials and the network."
        ) from error


def open_store(location: str, keep: int) -> DirectoryStore:
    """Return the store for a path or a URI; file:// is a path.

    Raises:
        UserError: The URI cannot be used.
    """
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        return UriStore(location, keep)
    return DirectoryStore(Path(rest if separator else location), keep)


def _order(name: str) -> tuple[int, int]:
    epoch, step = name.split("-")
    return int(epoch), int(step)


def _lock_file(path: Path) -> int | None:
    """Return a descriptor that locks the file until it is closed or the process ends; None where locks do not work.

    A POSIX lock is bound to the process: a restart finds no lock from a killed process, and NFS servers drop a dead
    node's locks. The file's content identifies the process for the message.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    own = {"host": socket.gethostname(), "pid": os.getpid(), "boot": read_boot_id()}
    deadline = time.monotonic() + _LEASE_SECONDS
    is_announced = False
    try:
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                holder = _read_holder(descriptor)
                if holder.get("boot") == own["boot"] or time.monotonic() > deadline:
                    raise UserError(
                        f"checkpoint_dir: {path.parent} is in use by process {holder.get('pid', '?')} on "
                        f"{holder.get('host', 'another node')}",
                        hint="Wait for its end, or use another checkpoint directory for each run.",
                    ) from None
                if not is_announced:
                    _logger.warning(
                        "%s is locked by a process on %s: waiting up to %.0f s, the lease of the lock of a dead node",
                        path.parent,
                        holder.get("host", "another node"),
                        _LEASE_SECONDS,
                    )
                    is_announced = True
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                _logger.warning("%s cannot be locked against a second run (%s)", path.parent, error.strerror)
                os.close(descriptor)
                return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(own).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
