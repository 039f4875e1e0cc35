"""Processes of tests/support/mindspore_processes.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.training.jobs import eventually, is_alive

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

SESSION = """
import pathlib, sys, time
from tests.support.mindspore_processes import MindSporeProcesses
directory = pathlib.Path(sys.argv[1])
MindSporeProcesses().start([directory / "script.py"], directory)
time.sleep(600)
"""
SCRIPT = """
import os, pathlib, time
pathlib.Path("new").write_text(f"{os.getpid()} {os.getppid()}")
pathlib.Path("new").rename("pids")
time.sleep(600)
"""


def test_processes_end_with_killed_session(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", SESSION, tmp_path], cwd=root) as session:
        eventually((tmp_path / "pids").exists)
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert all(map(is_alive, pids))
        session.kill()
    eventually(lambda: not any(map(is_alive, pids)))
