"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `dataset`, `checkpoint`, and the bundles `free`, `fixed` (batch 8) and `pair`.

    Made once, by a process of its own. They belong to all tests: copy what is to be damaged.
    """
    root = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "make_models.py"), str(root)],
        env={**os.environ, "GLOG_v": "4"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return root


@pytest.fixture
def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
