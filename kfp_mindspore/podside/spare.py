"""A warm spare in a pod: a process that imports MindSpore first, and then becomes a job member.

    python -m kfp_mindspore.podside.spare --assignment FILE SCRIPT …

It waits until the file has content, a JSON object with the variables to set, and then runs its own arguments, a script
or `-m` and a module, as `python` would.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.local.fork import run_python

# What each training process imports.
_MODULES = ("mindspore.communication", "mindspore.train", "kfp_mindspore.training.run")
_POLL_SECONDS = 0.1


def main(arguments: Sequence[str]) -> None:
    """Import MindSpore, wait for an assignment and run it."""
    # A container's first process ignores SIGTERM by default.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    import_mindspore()
    for name in _MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    environment = _wait_for_assignment(Path(arguments[1]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    run_python(arguments[2:])


def _wait_for_assignment(file: Path) -> dict[str, str]:
    # A downward API volume, which the kubelet updates atomically.
    while not (text := file.read_text(encoding="utf-8")):
        time.sleep(_POLL_SECONDS)
    environment: dict[str, str] = json.loads(text)
    return environment


if __name__ == "__main__":
    main(sys.argv[1:])
