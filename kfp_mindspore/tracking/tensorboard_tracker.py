"""TensorBoard event files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.tracking.tracker import TrackerState

_FLUSH_SECONDS = 10.0


class TensorBoardTracker:
    """Writes event files with tensorboardX's EventsWriter.

    tensorboardX's SummaryWriter hands points to a thread that `flush` does not wait for, so that a killed training
    would lose some that the last checkpoint has.

    Args:
        directory: Directory for the files. A resumed training adds a file, which hides the later steps' points in the
            files of an interrupted one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None
        self._flushed = time.monotonic()

    def begin(self, parameters: Mapping[str, Any], state: TrackerState | None, step: int) -> None:
        """Open a file, and write the parameters as a text for a new training."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.summary import text

        self._directory.mkdir(parents=True, exist_ok=True)
        # Its own suffix is the second, which a quick restart may share, also in the same process. TensorBoard reads the
        # files by name.
        self._writer = EventsWriter(str(self._directory / "events"), f".{time.time_ns()}.{os.getpid()}")
        # TensorBoard drops what was written for this step and later ones.
        self._write(step + 1, session_log=SessionLog(status=SessionLog.START))
        if state is None:
            rows = "".join(f"| {name} | {value} |\n" for name, value in parameters.items())
            self._write(0, summary=text("parameters", f"| parameter | value |\n|---|---|\n{rows}"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each value."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step, summary=scalar(name, value))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def read_state(self) -> TrackerState:
        """Write everything to the disk: a training resumed from this checkpoint does not log it again."""
        self._flush()
        return {}

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, step: int, **content: object) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(step=step, wall_time=time.time(), **content))

    def _flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()
