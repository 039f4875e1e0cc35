"""A local step's checkpoint directory: kept with the run, so that a resumed run finds it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.files import digest_bytes
from kfp_mindspore.settings import RUN_CHECKPOINTS_VARIABLE, STEP_VARIABLE

_DIGEST_LENGTH = 12


class StepCheckpoints:
    """Checkpoint directory for a step that names none; it is created.

    A run of a pipeline keeps them in its own directory until it has succeeded, under the step's name and a digest over
    what it trains from: a resumed run's step has other output paths, and another iteration of a loop other arguments.

    Args:
        beside: Directory for a step outside a run; deleted by `delete`.
        identity: The step's arguments and inputs, JSON types.
    """

    def __init__(self, beside: Path, identity: Sequence[Any]) -> None:
        run = os.environ.get(RUN_CHECKPOINTS_VARIABLE)
        self._is_temporary = not run
        self.path = beside
        if run:
            digest = digest_bytes(json.dumps(identity, sort_keys=True, default=str).encode())[:_DIGEST_LENGTH]
            self.path = Path(run) / f"{os.environ.get(STEP_VARIABLE, 'step')}-{digest}"
        self.path.mkdir(parents=True, exist_ok=True)

    def delete(self) -> None:
        """Delete the checkpoints of a step outside a run."""
        if self._is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)
