"""Where the cluster's binaries, images and running instances are kept, and locks among processes."""

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


def find_cache() -> Path:
    """Return the directory of everything that outlives a run; made when missing, readable by pods of any user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get(CACHE_VARIABLE) or home / "kfp-mindspore" / "cluster").expanduser().absolute()
    make_directory(cache)
    return cache


def make_directory(path: Path, mode: int = 0o755) -> Path:
    """Make a directory with these permission bits, whatever the umask is."""
    path.mkdir(parents=True, exist_ok=True)
    if path.stat().st_mode & 0o7777 != mode:
        path.chmod(mode)
    return path


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a file's lock, waiting for it; the kernel lets go of it when this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compute_digest(files: Iterable[Path], *words: str) -> str:
    """Return the head of the SHA-256 of some files' contents and of words."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode() + b"\0")
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
