"""Cache directory of binaries, images and running clusters, and file locks."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

CACHE_VARIABLE = "KFP_MINDSPORE_CLUSTER_CACHE"
INFRASTRUCTURE = Path(__file__).parent
ROOT = INFRASTRUCTURE.parents[2]


def get_cache() -> Path:
    """Return the cache directory, created when missing, readable by pods of any user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get(CACHE_VARIABLE) or home / "kfp-mindspore" / "cluster").expanduser().absolute()
    make_directory(cache)
    return cache


def make_directory(path: Path, mode: int = 0o755) -> Path:
    """Create a directory with these permission bits, regardless of the umask."""
    path.mkdir(parents=True, exist_ok=True)
    if path.stat().st_mode & 0o7777 != mode:
        path.chmod(mode)
    return path


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel releases it when this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compute_digest(files: Iterable[Path], *words: str) -> str:
    """Return the first 16 digits of the SHA-256 of files and words."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode() + b"\0")
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
