"""A local step's checkpoint directory: kept with the run, so that a resumed run finds it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore import events
from kfp_mindspore.canonical import digest_json
from kfp_mindspore.settings import RESUMED_VARIABLE, RUN_CHECKPOINTS_VARIABLE, STEP_VARIABLE

_DIGEST_LENGTH = 12


class StepCheckpoints:
    """Checkpoint directory for a step that names none; it is created.

    A run of a pipeline keeps them in a directory until it has succeeded, under the step's name and a digest over
    what it trains from: a resumed run's step has other output paths, and another iteration of a loop other arguments.
    A step of a resumed run that finds no checkpoint reports it in the log and in the run's notes.

    Args:
        beside: Directory for a step outside a run; deleted by `delete`.
        identity: The step's arguments and inputs, JSON types.
    """

    def __init__(self, beside: Path, identity: Sequence[Any]) -> None:
        run = os.environ.get(RUN_CHECKPOINTS_VARIABLE)
        self._is_temporary = not run
        self.path = beside
        if run:
            digest = digest_json(identity, str)[:_DIGEST_LENGTH]
            self.path = Path(run) / f"{os.environ.get(STEP_VARIABLE, 'step')}-{digest}"
        if run and os.environ.get(RESUMED_VARIABLE):
            _report_missing(self.path)
        self.path.mkdir(parents=True, exist_ok=True)

    def delete(self) -> None:
        """Delete the checkpoints of a step outside a run."""
        if self._is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)


def _has_checkpoint(directory: Path) -> bool:
    # The lock and unfinished writes are hidden.
    return directory.is_dir() and any(not entry.name.startswith(".") for entry in directory.iterdir())


def _report_missing(directory: Path) -> None:
    """Report that an earlier attempt at the step has left no checkpoint; nothing if there was none."""
    step, _, _ = directory.name.rpartition("-")
    others = [other.name for other in sorted(directory.parent.glob(f"{step}-*")) if _has_checkpoint(other)]
    if directory.name in others or not (others or directory.is_dir()):
        return
    text = f"no checkpoint of an earlier attempt in {directory}: the step starts from its beginning" + (
        f"; {', '.join(others)} beside it: other arguments or inputs" if others else ""
    )
    print(text, flush=True)
    events.emit("note", "checkpoints", text=text)
