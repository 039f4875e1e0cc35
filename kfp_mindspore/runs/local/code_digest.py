"""Digest over the code that a run executes: part of the cache key, so that code changes invalidate cached steps."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator
from pathlib import Path

MAXIMUM_FILES = 2000

_PACKAGES = ("kfp_mindspore", "mindsporeserver")
_LIBRARIES = ("mindspore", "numpy", "scikit-learn", "kserve", "kfp")
_SUFFIXES = (".py", ".j2")
_SKIPPED = {"__pycache__", "site-packages", "node_modules"}


def compute_code_digest(project: Path | None = None) -> str | None:
    """Compute a digest over this package, the user's project and the main dependencies' versions.

    Args:
        project: Directory with the user's code; hidden directories, virtual environments and `site-packages` are
            skipped.

    Returns:
        A sha256 in hexadecimal, or None if the project has more than `MAXIMUM_FILES` files: caching must be disabled.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for library in _LIBRARIES:
        try:
            version = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        digest.update(f"\0{library}={version}".encode())
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for location in spec.submodule_search_locations or () if spec else ():
            _add_directory(digest, Path(location), package)
    if project is not None and not _add_directory(digest, project, "project"):
        return None
    return digest.hexdigest()


def _add_directory(digest: hashlib._Hash, root: Path, label: str) -> bool:
    for count, file in enumerate(_list_sources(root)):
        if count >= MAXIMUM_FILES:
            return False
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"\0{label}/{file.relative_to(root)}={content}".encode())
    return True


def _list_sources(root: Path) -> Iterator[Path]:
    # In a checkout, kfp_mindspore/components and kfp_mindspore/pipelines are symbolic links.
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED and not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix in _SUFFIXES and not name.startswith(".") and file.is_file():
                yield file
