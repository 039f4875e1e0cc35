"""A training's trackers."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import MLFLOW_URI_VARIABLE
from kfp_mindspore.tracking.tracker import STEP_LOSS, Tracker, TrackerState

# Tracker → the package that its extra, of the same name, installs.
TRACKERS = {"mlflow": "mlflow", "tensorboard": "tensorboardX"}
# Logged losses of steps in an epoch, at most.
STEP_POINTS = 200
_logger = logging.getLogger(__name__)


class Trackers:
    """Several trackers as one; a context manager that ends them.

    Args:
        trackers: By name.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._tags: dict[str, str] = {}
        self._is_begun = False

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_begun:
            return
        status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
        for tracker in self._trackers.values():
            tracker.end(status, self._tags)

    def begin(self, parameters: Mapping[str, Any], states: Mapping[str, TrackerState] | None, step: int) -> None:
        """Begin or continue the trackers' runs; `states` is from `read_states`, None for a new training."""
        self._is_begun = True
        for name, tracker in self._trackers.items():
            tracker.begin(parameters, None if states is None else states.get(name), step)

    def log_steps(self, losses: Sequence[float], last: int, steps: int) -> None:
        """Log consecutive steps' losses.

        Args:
            losses: One a step.
            last: The last step's number.
            steps: Steps in an epoch; if more than STEP_POINTS, every n-th is logged.
        """
        interval = -(-steps // STEP_POINTS)
        for step, loss in enumerate(losses, last - len(losses) + 1):
            if step % interval == 0:
                self.log(step, {STEP_LOSS: loss})

    def log_epoch(self, record: Mapping[str, Any]) -> None:
        """Log an epoch's record from metrics.jsonl, with the first parameter group's learning rate."""
        rate = record["learning_rate"]
        values = {
            "epoch": record["epoch"],
            "loss": record["loss"],
            "learning_rate": rate[0] if isinstance(rate, list) else rate,
            "samples_per_second": record["samples_per_second"],
            **record.get("validation", {}),
        }
        self.log(record["step"], {name: value for name, value in values.items() if isinstance(value, (int, float))})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at an optimizer step."""
        for tracker in self._trackers.values():
            tracker.log(step, values)

    def tag(self, name: str, value: object) -> None:
        """Add a tag that is logged at the end."""
        self._tags[name] = str(value)

    def read_states(self) -> dict[str, TrackerState]:
        """Return the trackers' states by name, for a checkpoint."""
        return {name: tracker.read_state() for name, tracker in self._trackers.items()} if self._is_begun else {}


def open_trackers(names: Sequence[str] | None, directory: Path | None, location: str | None) -> Trackers:
    """Return trackers that have not begun.

    Args:
        names: Of TRACKERS; None for MLflow when MLFLOW_TRACKING_URI is set.
        directory: For event files.
        location: The checkpoint directory or URI, by which an interrupted training finds its MLflow run.

    Raises:
        UserError: A tracker's package is not installed, or it has no place to write to.
    """
    chosen = list(names) if names is not None else ["mlflow"] if os.environ.get(MLFLOW_URI_VARIABLE) else []
    for name in list(chosen):
        if importlib.util.find_spec(TRACKERS[name]) is not None:
            continue
        message = f"trackers: {name} needs the package {TRACKERS[name]}, which is not installed"
        hint = f"pip install 'kfp-mindspore[{name}]'"
        if names is not None:
            raise UserError(message, hint=f"{hint}, in the job's image too.")
        # The pipeline server, not the user, has set the variable.
        _logger.warning("%s is set, but nothing is logged: %s; %s", MLFLOW_URI_VARIABLE, message, hint)
        chosen.remove(name)
    return Trackers({name: _build_tracker(name, directory, location) for name in chosen})


def tag_runs(states: Mapping[str, TrackerState], tags: Mapping[str, str]) -> None:
    """Add tags to the run that trained a checkpoint, where MLflow is installed and MLFLOW_TRACKING_URI is set.

    Args:
        states: The checkpoint's `training["trackers"]`.
        tags: Such as an exported bundle's URI.
    """
    run_id = states.get("mlflow", {}).get("run_id")
    if run_id and os.environ.get(MLFLOW_URI_VARIABLE) and importlib.util.find_spec(TRACKERS["mlflow"]) is not None:
        from kfp_mindspore.tracking.mlflow_tracker import tag_run

        tag_run(run_id, tags)


def _build_tracker(name: str, directory: Path | None, location: str | None) -> Tracker:
    if name == "mlflow":
        from kfp_mindspore.tracking.mlflow_tracker import MlflowTracker

        if not os.environ.get(MLFLOW_URI_VARIABLE):
            raise UserError(
                f"trackers: mlflow needs {MLFLOW_URI_VARIABLE}, which is not set",
                hint=f"Set it to the server's address, such as {MLFLOW_URI_VARIABLE}=http://127.0.0.1:5000.",
            )
        return MlflowTracker(location)
    from kfp_mindspore.tracking.tensorboard_tracker import TensorBoardTracker

    if directory is None:
        raise UserError(
            "trackers: tensorboard has no directory to write to: the training has no local checkpoint directory",
            hint="Set checkpoint_dir=… or output_dir=….",
        )
    return TensorBoardTracker(directory)
