"""Warm spares: which commands and environments they serve; real ones are in tests/faults/test_gang_faults.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.msjob.backends.process_spec import ProcessSpec, is_python_program
from kfp_mindspore.msjob.backends.spares import get_import_environment

PROGRAM = """
import json, sys
from kfp_mindspore.training.spare import become
become(json.loads(sys.argv[1]))
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


def test_variables_of_the_topology_do_not_matter() -> None:
    environment = {"MS_NODE_ID": "1", "MS_NODE_TIMEOUT": "300", "DATA": "x", "GLOG_v": "3", "PYTHONPATH": "src"}
    spec = ProcessSpec(("python",), Path("/"), environment)
    assert get_import_environment(spec) == {"GLOG_v": "3", "PYTHONPATH": "src"}


@pytest.mark.parametrize(
    ("argv", "shown"), [(["-u", "src/train.py", "x"], ["src/train.py", "x"]), (["-m", "train", "x"], None)]
)
def test_spare_runs_a_command_line_as_python_does(tmp_path: Path, argv: list[str], shown: list[str] | None) -> None:
    folder = tmp_path / "src" if argv[0] == "-u" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("")
    log = tmp_path / "log"
    assignment = {"argv": argv, "cwd": str(tmp_path), "environment": {"A": "1"}, "log": str(log)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(assignment)], env={"B": "2"}, check=False, input="more", text=True
    )
    assert done.returncode == 7, log.read_text()
    expected = shown or [str(folder / "train.py"), "x"]
    assert log.read_text() == f"{expected} {tmp_path} 1 False helper \n"
