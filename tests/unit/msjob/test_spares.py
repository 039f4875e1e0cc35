"""Warm spares: which commands and environments they serve; real ones are in tests/faults/test_gang_faults.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.local.process import ProcessSpec
from kfp_mindspore.msjob.backends.spares import get_import_environment
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


def test_variables_of_topology_do_not_matter() -> None:
    environment = {"MS_NODE_ID": "1", "MS_NODE_TIMEOUT": "300", "DATA": "x", "GLOG_v": "3", "PYTHONPATH": "src"}
    spec = ProcessSpec(("python",), Path("/"), environment)
    assert get_import_environment(spec) == {"GLOG_v": "3", "PYTHONPATH": "src"}


@pytest.mark.parametrize(
    ("argv", "shown"), [(["-u", "src/train.py", "x"], ["src/train.py", "x"]), (["-m", "train", "x"], None)]
)
def test_spare_runs_command_line_as_python_does(tmp_path: Path, argv: list[str], shown: list[str] | None) -> None:
    folder = tmp_path / "src" if argv[0] == "-u" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("")
    log = tmp_path / "log"
    assignment = {"argv": argv, "cwd": str(tmp_path), "environment": {"A": "1"}, "log": str(log)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"B": "2"}, check=False, input=f"{json.dumps(assignment)}\n", text=True
    )
    assert done.returncode == 7, log.read_text()
    expected = shown or [str(folder / "train.py"), "x"]
    assert log.read_text() == f"{expected} {tmp_path} 1 False helper \n"


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
