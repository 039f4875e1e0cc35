"""A warm spare: a process that imports MindSpore first, and then becomes a job member.

    python -m kfp_mindspore.podside.spare
    python -m kfp_mindspore.podside.spare --assignment FILE SCRIPT …

Locally it waits for one JSON line on standard input: `argv` (a Python command line without the interpreter), `cwd`,
`environment` and `log` (a file that gets its output). It exits when the input ends without a line. In a pod it waits
until a file has content, a JSON object with the variables to set, and its own arguments are the command line. It then
runs the script or module as `python` would.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kfp_mindspore.compat.mindspore_import import import_mindspore

# What each training process imports.
_MODULES = ("mindspore.communication", "mindspore.train", "kfp_mindspore.training.run")
_POLL_SECONDS = 0.1


def main(arguments: Sequence[str]) -> None:
    """Import MindSpore, wait for an assignment and run it."""
    in_pod = bool(arguments) and arguments[0] == "--assignment"
    if in_pod:
        # A container's first process ignores SIGTERM by default.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    import_mindspore()
    for name in _MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    if in_pod:
        environment = _wait_for_assignment(Path(arguments[1]))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(environment)
        run_python(arguments[2:])
    elif line := sys.stdin.readline():
        assignment = json.loads(line)
        os.environ.clear()
        os.environ.update(assignment["environment"])
        os.chdir(assignment["cwd"])
        _redirect(assignment["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1, 2)
        _redirect(os.devnull, os.O_RDONLY, 0)
        run_python(assignment["argv"])


def run_python(words: Sequence[str]) -> None:
    """Run a Python command line in this process.

    Args:
        words: Its words without the interpreter: a script or `-m` and a module, with their arguments.
    """
    argv = list(words)
    while argv[0] == "-u":
        # Set when the spare was started.
        del argv[0]
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], str(Path.cwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = argv, str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")


def _wait_for_assignment(file: Path) -> dict[str, str]:
    # A downward API volume, which the kubelet updates atomically.
    while not (text := file.read_text(encoding="utf-8")):
        time.sleep(_POLL_SECONDS)
    environment: dict[str, str] = json.loads(text)
    return environment


def _redirect(path: str, flags: int, *targets: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    for target in targets:
        os.dup2(descriptor, target)
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
