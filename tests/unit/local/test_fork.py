"""Forked children beside new processes; MindSpore's are in tests/unit/msjob/backends/test_forks.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.local.process import ProcessIdentity, spawn_child
from kfp_mindspore.local.reads import add_recorder
from kfp_mindspore.settings import READS_VARIABLE, STEP_VARIABLE

PARENT = """
import json, os, signal, sys, threading
from pathlib import Path
from kfp_mindspore.local.fork import ForkedChild, fork_child, is_single_threaded

def main():
    given = json.loads(sys.argv[1])
    for module in given["modules"]:
        __import__(module)
    os.environ["OF_PARENT"] = "1"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert is_single_threaded()
    argv = [sys.executable, *given["argv"]]
    for _ in range(given["count"]):
        child = fork_child(argv, cwd=Path(given["cwd"]), env=given["environment"], log=Path(given["log"]))
        polled = child.poll()
        print(child.pid, flush=True)
        # A child may end at once.
        assert polled in (None, child.wait())
        print(child.wait())

try:
    main()
    forked = None
except ForkedChild as child:
    forked = child.with_traceback(None)
if forked is not None:
    forked.run()
"""
STATE = """
import json, os, resource, signal, sys
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(), "environment": dict(os.environ),
    "path": sys.path, "stdin": sys.stdin.read(), "descriptors": sorted(os.listdir("/proc/self/fd")),
    "umask": os.umask(0), "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [str(signal.getsignal(number)) for number in numbers],
    "streams": [sys.stdout.encoding, sys.stdout.write_through, sys.stderr.encoding],
}))
sys.exit(7)
"""


class Program:
    """A script, run as a new process and as a fork."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "A": "1",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "PYTHONUNBUFFERED": "1",
        }
        (folder / "src").mkdir()

    def write(self, code: str) -> None:
        (self.folder / "src" / "program.py").write_text(code)

    def start_parent(self, *argv: str, count: int = 1, modules: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        log = self.folder / "forked.log"
        log.unlink(missing_ok=True)
        request = {"argv": argv, "cwd": str(self.folder), "environment": self.environment, "log": str(log)}
        return subprocess.Popen(
            [sys.executable, "-c", PARENT, json.dumps({**request, "count": count, "modules": modules})],
            env={**self.environment, "OF_PARENT": "1"},
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def fork(self, *argv: str, **options: Any) -> tuple[list[int], str]:
        """Return the children's exit codes and their output."""
        with self.start_parent(*argv, **options) as parent:
            output, _ = parent.communicate(timeout=300)
        assert parent.returncode == 0
        return list(map(int, output.split()[1::2])), (self.folder / "forked.log").read_text()

    def run(self, *argv: str) -> tuple[list[int], str]:
        """Return the same for a new process."""
        log = self.folder / "new.log"
        log.unlink(missing_ok=True)
        child = spawn_child([sys.executable, *argv], cwd=self.folder, env=self.environment, log=log, own_session=True)
        return [child.wait(60)], log.read_text()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("argv", [("src/program.py", "-x", "y"), ("-u", "src/program.py"), ("-m", "src.program", "z")])
def test_fork_has_state_of_new_process(program: Program, argv: tuple[str, ...]) -> None:
    program.write(STATE)
    (codes, forked), (expected_codes, expected) = program.fork(*argv), program.run(*argv)
    assert codes == expected_codes == [7]
    one, other = json.loads(forked), json.loads(expected)
    assert one["environment"] == other["environment"] == program.environment
    for state in (one, other):
        del state["environment"]
        # Descriptor 3 is the listing's own.
        assert state.pop("descriptors") == ["0", "1", "2", "3"]
        state["path"] = sorted(set(map(os.path.realpath, state["path"])))
        state["file"] = os.path.realpath(Path(program.folder, state["file"]))
    assert one == other


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("import os; os._exit(3)", 3),
        ("raise SystemExit('no data')", 1),
        ("raise ValueError('no data')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import atexit; atexit.register(print, 'no data'); raise SystemExit(143)", 143),
        ("import threading, time; threading.Timer(0.1, print, ['no data']).start()", 0),
    ],
)
def test_fork_ends_as_new_process(program: Program, code: str, expected: int) -> None:
    program.write(code)
    (codes, output), (new_codes, new_output) = program.fork("src/program.py"), program.run("src/program.py")
    assert codes == new_codes == [expected]
    assert ("no data" in output) == ("no data" in new_output) == ("no data" in code)
    assert ("Traceback" in output) == ("Traceback" in new_output)
    assert "ForkedChild" not in output


def test_child_dies_with_parent(program: Program, eventually: Callable[..., None]) -> None:
    program.write("import time; print('ready', flush=True); time.sleep(600)")
    with program.start_parent("src/program.py") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        eventually(lambda: "ready" in (program.folder / "forked.log").read_text())
        parent.kill()
    eventually(lambda: ProcessIdentity.of(child) is None)


def test_random_numbers_differ(program: Program) -> None:
    program.write("import random, numpy; print(random.random(), numpy.random.random())")
    codes, output = program.fork("src/program.py", count=2, modules=("random", "numpy"))
    assert codes == [0, 0]
    assert len(set(output.split())) == 4


def test_opened_files_are_recorded(program: Program) -> None:
    program.environment |= {READS_VARIABLE: str(program.folder), STEP_VARIABLE: "step"}
    program.environment = add_recorder(program.environment)
    program.write("open('data.txt').read()")
    (program.folder / "data.txt").touch()
    assert program.fork("src/program.py")[0] == [0]
    assert str(program.folder / "data.txt") in (program.folder / "step").read_text().split()


def test_other_thread_is_noticed() -> None:
    code = """
import threading
from kfp_mindspore.local.fork import is_single_threaded
print(is_single_threaded())
event = threading.Event()
threading.Thread(target=event.wait).start()
print(is_single_threaded())
event.set()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]
