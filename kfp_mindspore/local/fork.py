"""Children forked from this process, which start with the modules that it has imported (Linux)."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from kfp_mindspore.local.process import ForkedProcess, enter_child
from kfp_mindspore.local.reads import get_recorder


class ForkedChild(BaseException):
    """Unwinds a forked child's stack to the program's entrypoint, which calls `run`.

    The child thus ends as other Python programs do: exit handlers run, threads are joined.

    Args:
        argv: The Python command line.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(*argv)
        self._argv = argv

    def run(self) -> None:
        """Run the command."""
        run_python(self._argv[1:])


def is_single_threaded() -> bool:
    """Return whether this process has no other thread, native ones included; OpenBLAS's idle threads are ended."""
    if _count_threads() > 1:
        # OpenBLAS ends its threads before each fork and starts them again when it computes.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _count_threads() == 1


def _count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def fork_child(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> ForkedProcess:
    """Start `python script …` or `python -m module …` as a fork, with `spawn_child`'s guarantees and its own session.

    The child raises ForkedChild, which only the program's entrypoint may catch. This process has one thread.

    Args:
        argv: Command line; the program is this interpreter, the only option -u.
        cwd: Working directory.
        env: The whole environment.
        log: File that gets the output and errors, appended.

    Raises:
        OSError: It could not be started.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(output)
        raise
    if pid == 0:
        _become_child(parent, output, argv, cwd, env)
    os.close(output)
    return ForkedProcess(pid)


def _become_child(parent: int, output: int, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> NoReturn:
    """Give the fork a new process's signals, descriptors, directory, environment, import path and random state."""
    try:
        signal.set_wakeup_fd(-1)
        enter_child(parent, own_session=True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.closerange(3, max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1)
        os.chdir(cwd)
        own = list_import_path(os.environ, cwd)
        os.environ.clear()
        os.environ.update(env)
        rest = [entry for entry in sys.path[1:] if entry not in own]
        sys.path[:] = [str(cwd), *list_import_path(env, cwd), *rest, *own]
        if (numpy := sys.modules.get("numpy")) is not None:
            # Python's own generator is seeded after each fork.
            numpy.random.seed()
        if (recorder := get_recorder(env)) is not None:
            runpy.run_path(str(recorder))
    except BaseException:  # noqa: BLE001 - the supervisor's code must not run in the child
        traceback.print_exc()
        os._exit(1)
    raise ForkedChild(argv)


def list_import_path(environment: Mapping[str, str], cwd: Path) -> list[str]:
    """Return PYTHONPATH's entries as absolute paths."""
    return [str(cwd / entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


def run_python(words: Sequence[str]) -> None:
    """Run a Python command line in this process.

    Args:
        words: The words without the interpreter: a script or `-m` and a module, with their arguments.
    """
    argv = list(words)
    while argv[0] == "-u":
        # Set when the process was started.
        del argv[0]
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], str(Path.cwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = argv, str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")
