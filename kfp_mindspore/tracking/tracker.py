"""What a tracker does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

# A step's loss is logged under this name.
STEP_LOSS = "step_loss"
# What a tracker keeps in a checkpoint, JSON types.
TrackerState = dict[str, Any]


class Tracker(Protocol):
    """Where a training logs to. No method waits for a server except `end`, which waits for a limited time."""

    def begin(self, parameters: Mapping[str, Any], state: TrackerState | None, step: int) -> None:
        """Begin or continue a run.

        Args:
            parameters: The training's parameters and data tags, by name.
            state: From the checkpoint that the training resumes from; None for a new training.
            step: Optimizer steps that the training has done.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at an optimizer step. The same step is logged again by a training that resumed before it."""

    def read_state(self) -> TrackerState:
        """Return what a checkpoint needs so that a resumed training leaves no gap."""

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        """End the run.

        Args:
            status: FINISHED, FAILED or KILLED.
            tags: Such as the final checkpoint's path.
        """
