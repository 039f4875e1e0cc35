"""Directories shared by the pytest-xdist workers of one session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory that the first worker to request it fills; read-only afterwards.

    Args:
        factory: The session's `tmp_path_factory`.
        name: Name of the directory.
        make: Fills the directory, which exists and is empty.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    directory, complete = base / name, base / f"{name}.complete"
    with FileLock(base / f"{name}.lock"):
        if not complete.exists():
            directory.mkdir()
            make(directory)
            complete.touch()
    return directory
