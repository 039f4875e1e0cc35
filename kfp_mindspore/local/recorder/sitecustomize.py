"""Recorder for the files that a step's processes open for reading.

Python imports it at start-up from PYTHONPATH, see `kfp_mindspore.local.reads`. Paths are appended when a file is
opened, not at exit: a worker that is killed or calls `os._exit` runs no exit handlers. It imports the standard library
only.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow every start of Python
_LIBRARY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_SYSTEM = ("/proc/", "/sys/", "/dev/", _LIBRARY, _HERE)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def _record(target: str) -> None:
    seen: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes)):
            return
        flags = arguments[2]
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            return
        # An exception in a hook would make the user's open() fail.
        with contextlib.suppress(OSError, ValueError):
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100
            if path in seen or path.startswith(_SYSTEM) or any(part in path for part in _INSTALLED):
                return
            seen.add(path)
            source = importlib.util.source_from_cache(path) if path.endswith(".pyc") else path
            # Opened for each line: a descriptor kept open may be closed and reused by the program.
            descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, os.fsencode(source) + b"\n")
            finally:
                os.close(descriptor)

    sys.addaudithook(hook)


def _import_next() -> None:
    """Import the sitecustomize module that this one hides."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("KFP_MINDSPORE_READS") and os.environ.get("KFP_MINDSPORE_STEP"):
    _record(os.path.join(os.environ["KFP_MINDSPORE_READS"], os.environ["KFP_MINDSPORE_STEP"]))  # noqa: PTH118
_import_next()
