"""Progress events: one JSON object per line, appended by every process in a run to one file.

A run sets `KFP_MINDSPORE_EVENTS` (the file) and, for each step, `KFP_MINDSPORE_STEP` (its name). Without the first, as
in a pod, nothing is written. Kinds: `begin` and `end` (a work span; `end` has `seconds`), `progress` (such as epoch,
epochs, step, steps, loss), `gate` (metric, value, threshold, passed) and `note` (a text for the run's notes).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator

from kfp_mindspore.settings import EVENTS_VARIABLE, STEP_VARIABLE


def emit(kind: str, name: str, **fields: object) -> None:
    """Append one event; a no-op outside a run.

    Args:
        kind: `begin`, `end`, `progress`, `gate` or `note`.
        name: The operation, such as `training.fit`.
        **fields: Further values, JSON types only.
    """
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    event = {
        "time": time.time(),
        # Named as in KFP; `step` is a field in training events.
        "task": os.environ.get(STEP_VARIABLE, ""),
        "pid": os.getpid(),
        "kind": kind,
        "name": name,
        **fields,
    }
    # A single write to an O_APPEND descriptor is atomic among processes.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(event) + "\n").encode())
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """Record the block's duration.

    Imports belong before the block: a run reports the time outside the outermost spans as its overhead.
    """
    emit("begin", name)
    start = time.perf_counter()
    try:
        yield
    finally:
        emit("end", name, seconds=time.perf_counter() - start)
