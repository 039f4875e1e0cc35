"""Atomic writes of files and directories, digests, and the local state directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.outputs import OutputKind, check_replaceable
from kfp_mindspore.settings import HOME_VARIABLE

_CHUNK_BYTES = 1 << 20
_OPEN_TO_OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP
_logger = logging.getLogger(__name__)


def get_home() -> Path:
    """Return the local state directory: jobs, services, runs and the cache.

    Returns:
        `$KFP_MINDSPORE_HOME`, or `~/.kfp-mindspore`. It may not exist yet.
    """
    return Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".kfp-mindspore").expanduser().absolute()


def resolve_location(location: Path | str) -> str:
    """Return an absolute path, or a URI as it is."""
    return str(location) if "://" in str(location) else str(Path(location).expanduser().absolute())


def read_secret_file(path: Path, kind: str, limit: int) -> bytes:
    """Read a file with a secret; a file that others may read is used, with a warning in the log.

    Args:
        path: The file.
        kind: What it is, for messages, such as `key file`.
        limit: Most bytes to read.

    Raises:
        UserError: It cannot be read.
    """
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & _OPEN_TO_OTHERS:
                # No error: a mounted Kubernetes secret's default mode.
                _logger.warning(
                    "%s: %s: its mode is %04o: others than its owner can read or change it; "
                    "chmod 600, or in Kubernetes mount the secret with defaultMode: 0440",
                    path,
                    kind,
                    stat.S_IMODE(status.st_mode),
                )
            return stream.read(limit)
    except OSError as error:
        raise UserError(f"{path}: {kind}: {error.strerror}") from error


@contextlib.contextmanager
def replace_file(path: Path, mode: int = 0o644, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a temporary sibling, open for writing, that replaces the file when the block succeeds.

    Args:
        path: The file, in an existing directory.
        mode: Permission bits, independent of the umask.
        durable: Whether the content reaches the disk before the file appears.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file atomically, by a temporary sibling and a rename.

    Args:
        path: The file; its directory is created when missing.
        data: The content.
        mode: Permission bits, independent of the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path, mode) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: The file is missing, unreadable or not JSON; the message names it.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error


@contextlib.contextmanager
def replace_directory(path: Path, kind: OutputKind | None) -> Iterator[Path]:
    """Yield a temporary sibling directory that replaces `path` when the block succeeds.

    When the block raises, the temporary directory is removed and `path` is unchanged.

    Args:
        path: The directory.
        kind: What it is, see `outputs.check_replaceable`.

    Raises:
        UserError: `path` is a file, or has other content.
    """
    check_replaceable(Path(path), kind)
    with _make_sibling(Path(path)) as temporary:
        temporary.chmod(0o755)
        yield temporary
        _replace(temporary, Path(path))


@contextlib.contextmanager
def replace_path(path: Path) -> Iterator[Path]:
    """Yield a path at which the block creates a file or a directory, which then replaces `path`.

    When the block raises, nothing is left of it and `path` is unchanged.
    """
    with _make_sibling(path) as temporary:
        yield temporary / path.name
        _replace(temporary / path.name, path)


def copy_directory(source: Path, target: Path, *, without: str = "") -> None:
    """Copy a directory, which appears once it is complete and replaces an existing one; a missing one is no error.

    Args:
        source: The directory.
        target: Its copy.
        without: Name of a file or folder that is left out.
    """
    if source.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with replace_path(target) as path:
            shutil.copytree(source, path, ignore=shutil.ignore_patterns(without) if without else None)


@contextlib.contextmanager
def create_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling directory that becomes `path` when the block succeeds.

    Raises:
        FileExistsError: `path` exists; it is unchanged.
    """
    with _make_sibling(path) as temporary:
        temporary.chmod(0o755)
        yield temporary
        move_new(temporary, path)


def move_new(source: Path, path: Path) -> None:
    """Rename a directory to a new path of the same file system.

    Raises:
        FileExistsError: `path` exists.
    """
    try:
        source.rename(path)
    except OSError as error:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        raise


def remove_directory(path: Path) -> None:
    """Remove a directory by a rename, so that no reader sees it half-removed; a missing one is no error."""
    with contextlib.suppress(FileNotFoundError):
        _retire(path)


@contextlib.contextmanager
def _make_sibling(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(source: Path, path: Path) -> None:
    if path.is_dir() or (source.is_dir() and path.exists()):
        _retire(path, source)
    else:
        source.replace(path)


def _retire(path: Path, successor: Path | None = None) -> None:
    """Remove `path`, and rename its successor to it before the removal takes its time."""
    retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
    try:
        path.replace(retired / path.name)
        if successor is not None:
            try:
                successor.replace(path)
            except BaseException:
                (retired / path.name).replace(path)
                raise
    finally:
        shutil.rmtree(retired, ignore_errors=True)


def digest_bytes(data: bytes) -> str:
    """Return the bytes' sha256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return a file's sha256, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def walk_files(path: Path) -> Iterator[Path]:
    """Yield the entries below a directory that are no directories, sorted, without hidden and `__pycache__` folders."""
    for root, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (Path(root, name) for name in sorted(names))


def read_boot_id() -> str:
    """Return the running kernel's ID, which all containers on a node share; the host's name where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
