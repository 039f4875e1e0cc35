"""Cached steps' inputs that kfp's cache key lacks: files given by path, and the modules and files that steps open.

A record beside each cache entry has these files' digests. The entry is used only while they are all unchanged.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.local.reads import list_reads

MAXIMUM_FILES = 100_000
# A file may change once more within its modification time's resolution: later digests are not cached.
_RACE_NANOSECONDS = 2_000_000_000
_URI = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+://[^\s]+")


class DigestCache:
    """File and directory digests; a file with unchanged size, inode and times is not read again.

    Args:
        path: The SQLite database; created if missing.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        self._database.execute("CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, stat TEXT, digest TEXT)")

    def digest(self, path: Path) -> str | None:
        """Return the digest of a file, or of the files below a directory without hidden and `__pycache__` folders.

        Returns:
            A digest in hexadecimal, "missing", or None for a directory with more than `MAXIMUM_FILES` files.
        """
        if not path.is_dir():
            return self._digest_file(path)
        parts = []
        for file in files.walk_files(path):
            parts.append(f"{file.relative_to(path)}\0{self._digest_file(file)}\n")
            if len(parts) > MAXIMUM_FILES:
                return None
        return files.digest_bytes("".join(parts).encode(errors="surrogateescape"))

    def _digest_file(self, path: Path) -> str:
        try:
            status = path.stat()
            if not path.is_file():
                return "special"
            stat = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_dev} {status.st_ino}"
            key = os.fsencode(path).decode(errors="backslashreplace")
            with self._lock:
                row = self._database.execute("SELECT digest FROM digests WHERE path=? AND stat=?", (key, stat))
                found = row.fetchone()
            if found is not None:
                return str(found[0])
            digest = files.digest_file(path)
        except OSError:
            return "missing"
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _RACE_NANOSECONDS:
            with self._lock:
                self._database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (key, stat, digest))
        return digest


@dataclass
class _Task:
    """A task between cache entry lookup and end."""

    step: str
    values: Any
    start: float = 0.0
    before: dict[str, str | None] = field(default_factory=dict)


class StepInputs:
    """Records about cached steps' inputs.

    Args:
        cache: The cache's directory.
        reads: Directory with records about opened files, see `local.reads`.
        home: Local state directory, whose files are step outputs and not inputs.
        is_read: Whether entries may be used; False to write them only.
    """

    def __init__(self, cache: Path, reads: Path, home: Path, *, is_read: bool = True) -> None:
        self._cache = cache
        self._reads = reads
        self._home = home
        self._is_read = is_read
        self._digests = DigestCache(cache / "digests.sqlite")
        self._current = threading.local()

    def begin(self, step: str, values: Any) -> None:
        """Start a task in this thread.

        Args:
            step: Step name.
            values: The step's command and arguments.
        """
        self._current.task = _Task(step, values, time.time())

    def is_unchanged(self, key: str) -> bool:
        """Return whether a cache entry's inputs are unchanged; False without a record."""
        try:
            record = files.read_json(self._get_record(key))
            entry = files.digest_file(self._cache / f"{key}.json")
        except (UserError, OSError):
            entry = None
        task: _Task = self._current.task
        if self._is_read and entry is not None and record.get("entry") == entry:
            recorded = record["files"]
            if all(
                digest is not None and self._digests.digest(Path(path)) == digest for path, digest in recorded.items()
            ):
                return True
        task.before = {str(path): self._digests.digest(path) for path in list_paths(task.values, self._home)}
        return False

    def store(self, key: str, put: Callable[[], None]) -> str:
        """Write a cache entry and a record, unless an input changed while the step ran.

        Args:
            key: The entry's key.
            put: Writes the entry.

        Returns:
            The reason why the entry is not written; empty if it is.
        """
        task: _Task = self._current.task
        inputs: dict[str, str] = {}
        for path in list_paths(task.values, self._home):
            digest = self._digests.digest(path)
            before = task.before.get(str(path), digest)
            if digest is None or before is None:
                return f"not cached: {path} has more than {MAXIMUM_FILES:,} files"
            if digest != before:
                return f"not cached: {path} changed while the step ran"
            inputs[str(path)] = digest
        for path in list_reads(self._reads, task.step):
            if path.is_relative_to(self._home):
                continue
            is_written = path.stat().st_mtime >= task.start
            if is_written and path.suffix == ".py":
                return f"not cached: {path} changed while the step ran"
            if not is_written:
                inputs[str(path)] = self._digests.digest(path) or ""
        put()
        entry = files.digest_file(self._cache / f"{key}.json")
        files.write_json(self._get_record(key), {"entry": entry, "files": inputs})
        return ""

    def describe_unknown(self) -> str:
        """Return what was not compared for this thread's cached task; empty for nothing."""
        uris = list(dict.fromkeys(_list_uris(self._current.task.values)))
        return f"the content of {', '.join(uris)} was not compared" if uris else ""

    def _get_record(self, key: str) -> Path:
        return self._cache / f"{key}.inputs.json"


def list_paths(values: Any, home: Path) -> list[Path]:
    """Return the existing local files and directories that a task's command and arguments name.

    Args:
        values: Strings, artifacts, lists and dictionaries of these; `file://` URIs count, `.` and `/` do not.
        home: Local state directory: artifacts below it are other steps' outputs.
    """
    paths = []
    for text, is_artifact in _list_texts(values):
        if len(text) > 4096 or "\n" in text or "\0" in text:
            continue
        path = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text)
        if path.name in ("", "..") or (is_artifact and path.absolute().is_relative_to(home)):
            continue
        if os.path.exists(path):  # noqa: PTH110 - Path.exists of Python 3.11 raises on names that are too long
            paths.append(path.absolute())
    return list(dict.fromkeys(paths))


def _list_uris(values: Any) -> Iterator[str]:
    return (text for text, _ in _list_texts(values) if _URI.fullmatch(text))


def _list_texts(value: Any) -> Iterator[tuple[str, bool]]:
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, dict):
        yield from _list_texts(list(value.values()))
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _list_texts(entry)
    elif isinstance(getattr(value, "uri", None), str):
        yield value.uri, True
