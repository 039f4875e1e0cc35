"""A run's checkpoints below a directory or a URI: lock, newest intact checkpoint, retention."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import posixpath
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
    """Checkpoints below an object store URI, written to and read from a temporary directory.

    checkpoint.json is uploaded after the other files and deleted before them, so that a listed checkpoint is complete.
    Object stores have no locks: a second writer is refused when its first checkpoint is found.

    Args:
        uri: A URI that fsspec writes: s3://, gs://.
        keep: How many of the newest checkpoints to keep.

    Raises:
        UserError: fsspec has no implementation for the URI, or needs another package.
    """

    def __init__(self, uri: str, keep: int) -> None:
        from fsspec.core import url_to_fs

        self._uri = uri.rstrip("/")
        try:
            self._filesystem, self._remote = url_to_fs(self._uri, use_listings_cache=False)
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
        found = self._list()
        for name, files in found.items():
            if DESCRIPTION not in files:
                self._delete(name, files)
        self._known = set(found)

    def get_latest(self) -> Checkpoint | None:
        """Download the newest intact checkpoint and return it, or None; a broken one is skipped with a warning."""
        for name, files in sorted(self._list().items(), key=lambda item: _order(item[0]), reverse=True):
            if DESCRIPTION not in files:
                continue
            target = self.root / name
            target.mkdir(exist_ok=True)
            with self._explain("read", name):
                for file in files:
                    self._filesystem.get_file(posixpath.join(self._remote, name, file), str(target / file))
            try:
                return Checkpoint.open(target)
            except UserError as error:
                _logger.warning("skipping a broken checkpoint: %s (%s)", self.locate(name), error.message)
                shutil.rmtree(target)
        return None

    def locate(self, name: str) -> str:
        """Return a checkpoint's URI."""
        return f"{self._uri}/{name}"

    def commit(self, path: Path) -> None:
        """Upload a checkpoint, and delete the oldest ones there and the temporary copies.

        Raises:
            UserError: Another run has written a checkpoint below the URI.
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        name = path.name
        found = self._list()
        if strange := sorted(found.keys() - self._known):
            raise UserError(
                f"checkpoint_dir: another run has written {self.locate(strange[-1])}",
                hint="Use another checkpoint directory for each run.",
            )
        self._known.add(name)
        self._delete(name, found.pop(name, set()))
        files = {file.name for file in path.iterdir()}
        with self._explain("written", name):
            for file in sorted(files, key=lambda file: file == DESCRIPTION):
                self._filesystem.put_file(str(path / file), posixpath.join(self._remote, name, file))
        found[name] = files
        for old in sorted(found, key=_order, reverse=True)[self._keep :]:
            self._delete(old, found[old])
        for local in checkpoints.list_checkpoints(self.root):
            shutil.rmtree(local)

    def close(self) -> None:
        """Remove the temporary directory."""
        self._temporary.cleanup()

    def _list(self) -> dict[str, set[str]]:
        """Return each checkpoint's file names."""
        with self._explain("listed", ""):
            paths = self._filesystem.find(self._remote)
        found: dict[str, set[str]] = {}
        prefix = self._remote.rstrip("/") + "/"
        for path in paths:
            name, _, file = path.removeprefix(prefix).partition("/")
            if checkpoints.is_checkpoint_name(name) and file and "/" not in file:
                found.setdefault(name, set()).add(file)
        return found

    def _delete(self, name: str, files: set[str]) -> None:
        with self._explain("deleted", name):
            for file in sorted(files, key=lambda file: file != DESCRIPTION):
                self._filesystem.rm_file(posixpath.join(self._remote, name, file))

    @contextlib.contextmanager
    def _explain(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # botocore, aiohttp and google-cloud have no common base class
            reason = " ".join(str(error).split()) or type(error).__name__
            raise KfpMindSporeError(
                f"{self.locate(name)}: cannot be {verb} ({reason})",
                hint="Checkpoints there are intact. Check the URI, the credentials and the network.",
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
