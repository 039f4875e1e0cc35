"""Warm spares in pods: which commands they serve, and their entrypoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.msjob.commands import is_python_program

PROGRAM = """
import sys
from kfp_mindspore.podside import spare
spare._MODULES = ()
spare.main(sys.argv[1:])
"""
SCRIPT = """
import helper, os, sys
if __name__ == "__main__":
    print(sys.argv, os.getcwd(), os.environ.get("A"), "B" in os.environ, helper.__name__, sys.stdin.read())
    sys.exit(7)
"""


@pytest.mark.parametrize(
    ("argv", "is_supported"),
    [
        ((sys.executable, "train.py", "-c"), True),
        ((sys.executable, "-u", "train.py"), True),
        ((sys.executable, "-m", "train", "--epochs", "3"), True),
        ((sys.executable, "-u", "-m", "train"), True),
        ((sys.executable, "-m"), False),
        ((sys.executable, "-c", "pass"), False),
        ((sys.executable, "-O", "train.py"), False),
        ((sys.executable,), False),
        (("bash", "train.sh"), False),
    ],
)
def test_commands(argv: tuple[str, ...], is_supported: bool) -> None:
    assert is_python_program(argv) == is_supported


def test_spare_in_pod_waits_for_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("")
    file = tmp_path / "assignment"
    file.write_text("")
    argv = [sys.executable, "-c", PROGRAM, "--assignment", str(file), str(tmp_path / "train.py"), "x"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env={"B": "2"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as spare:
        assert spare.stdout is not None
        assert spare.stdout.readline() == "ready\n"
        update = tmp_path / "update"
        update.write_text(json.dumps({"A": "1"}))
        # As the kubelet does.
        update.replace(file)
        assert spare.wait(60) == 7
        assert spare.stdout.read() == f"{[argv[-2], 'x']} {tmp_path} 1 True helper \n"


def test_spare_in_pod_ends_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "assignment"
    file.write_text("")
    argv = [sys.executable, "-c", PROGRAM, "--assignment", str(file), "train.py"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as spare:
        assert spare.stdout is not None
        assert spare.stdout.readline() == "ready\n"
        spare.terminate()
        assert spare.wait(60) == 143
