"""A warm spare: a process that imports MindSpore first, and then becomes a member of a job.

    python -m kfp_mindspore.training.spare

It waits for one line of JSON on standard input: `argv` (of a Python command line, without the interpreter), `cwd`,
`environment` and `log` (a file that gets its output; null to keep the present one). It then runs the script or module
as `python` would. At the end of the input without a line it exits.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

# What each training process imports.
_MODULES = ("mindspore.communication", "mindspore.train", "kfp_mindspore.training.run")


def main() -> None:
    """Import MindSpore, wait for an assignment and run it."""
    for name in _MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    line = sys.stdin.readline()
    if line:
        become(json.loads(line))


def become(assignment: dict[str, Any]) -> None:
    """Run a Python command line in this process.

    Args:
        assignment: `argv`, `cwd`, `environment` and `log`, see the module's description.
    """
    os.environ.clear()
    os.environ.update(assignment["environment"])
    os.chdir(assignment["cwd"])
    if assignment["log"] is not None:
        _redirect(assignment["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1, 2)
    _redirect(os.devnull, os.O_RDONLY, 0)
    argv = list(assignment["argv"])
    while argv[0] == "-u":
        # Set by PYTHONUNBUFFERED when the spare was started.
        del argv[0]
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], str(Path.cwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = argv, str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")


def _redirect(path: str, flags: int, *targets: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    for target in targets:
        os.dup2(descriptor, target)
    os.close(descriptor)


if __name__ == "__main__":
    main()
