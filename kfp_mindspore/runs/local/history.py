"""Finished and running local runs in the home directory: list, select and remove."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.local.lease import is_lease_held
from kfp_mindspore.settings import METRICS_FILE

ACTIVE_FILE = "active"
# Logs and events of a resumed run's earlier attempts.
ATTEMPTS_FOLDER = "attempts"
CHECKPOINTS_FOLDER = "checkpoints"
PIPELINE_FILE = "pipeline.yaml"
REQUEST_FILE = "request.json"
REPORT_FILE = "report.html"
RESULT_FILE = "result.json"
# How many newest runs the error for a missing run names.
_HINT_RUNS = 5


@dataclass(frozen=True)
class StoredRun:
    """A local run in the home directory.

    Args:
        id: Run ID, also the directory's name.
        directory: Logs, artifacts, events and report.
        pipeline: Pipeline name; empty for a run that was killed.
        state: `succeeded`, `refused`, `failed`, `interrupted`, `running`, or `killed` for a run without a result.
        started: Start, in seconds since the epoch.
        seconds: Duration; None for a run without a result.
        bytes: Total file size.
    """

    id: str
    directory: Path
    pipeline: str
    state: str
    started: float
    seconds: float | None
    bytes: int

    @property
    def report(self) -> Path | None:
        """The HTML report, if one was written."""
        file = self.directory / REPORT_FILE
        return file if file.is_file() else None

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON types."""
        report = self.report
        return {**vars(self), "directory": str(self.directory), "report": str(report) if report else None}


def list_runs(home: Path | None = None) -> list[StoredRun]:
    """Return the local runs, newest first.

    Args:
        home: Local state directory; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
    """
    root = (home or files.get_home()) / "runs"
    runs = [_read_run(file.parent) for file in root.glob(f"*/{REQUEST_FILE}")]
    return sorted(runs, key=lambda run: (run.started, run.id), reverse=True)


def get_run(name: str = "", home: Path | None = None) -> StoredRun:
    """Return a run by ID; the newest one without an ID.

    Raises:
        NotFoundError: The run does not exist, or there is none.
    """
    runs = list_runs(home)
    found = next((run for run in runs if name in ("", run.id)), None)
    if found is None:
        missing = f"{name}: no such run" if name else "no runs"
        raise NotFoundError(missing, hint=_describe_ids([run.id for run in runs]))
    return found


def find_metrics(run: StoredRun) -> Path:
    """Return a run's metrics.jsonl; of a run without a result the newest in the directory.

    Raises:
        UserError: There is none.
    """
    try:
        named = files.read_json(run.directory / RESULT_FILE).get("metrics_file")
    except UserError:
        named = None
    found = [Path(named)] if named else sorted(run.directory.rglob(METRICS_FILE), key=lambda file: file.stat().st_mtime)
    if not found or not found[-1].is_file():
        raise UserError(
            f"run {run.id}: has no {METRICS_FILE}, so no curves", hint="Its training step has not ended an epoch."
        )
    return found[-1]


def select_runs(
    runs: Sequence[StoredRun], *, older_than_days: float | None = None, keep_last: int | None = None
) -> list[StoredRun]:
    """Return the finished runs that fulfil all given conditions.

    Args:
        runs: Runs, newest first.
        older_than_days: Minimum age, in days of 24 hours.
        keep_last: How many newest runs per pipeline are not returned.
    """
    counts: dict[str, int] = {}
    selected = []
    limit = time.time() - (older_than_days or 0.0) * 86_400
    for run in runs:
        counts[run.pipeline] = counts.get(run.pipeline, 0) + 1
        if run.state != "running" and run.started <= limit and counts[run.pipeline] > (keep_last or 0):
            selected.append(run)
    return selected


def remove_run(run: StoredRun) -> None:
    """Delete a run's directory: artifacts too, so that steps that were cached from it run again.

    Raises:
        UserError: The run is not finished.
    """
    if is_lease_held(run.directory / ACTIVE_FILE):
        raise UserError(f"run {run.id}: is running", hint="Wait for its end, or interrupt it with Ctrl-C.")
    shutil.rmtree(run.directory)


def _describe_ids(ids: Sequence[str]) -> str:
    if not ids:
        return "Start one: kfp-mindspore demo"
    more = f" and {len(ids) - _HINT_RUNS} more: kfp-mindspore runs list" if len(ids) > _HINT_RUNS else ""
    return f"There are: {', '.join(ids[:_HINT_RUNS])}{more}"


def _read_run(directory: Path) -> StoredRun:
    request = directory / REQUEST_FILE
    started = request.stat().st_mtime
    size = sum(file.lstat().st_size for file in directory.rglob("*") if not file.is_dir())
    try:
        result = files.read_json(directory / RESULT_FILE)
        pipeline, state, seconds = str(result["pipeline"]), str(result["state"]), float(result["wall_seconds"])
    except (UserError, KeyError, TypeError, ValueError):
        state = "running" if is_lease_held(directory / ACTIVE_FILE) else "killed"
        return StoredRun(directory.name, directory, "", state, started, None, size)
    return StoredRun(directory.name, directory, pipeline, state, started, seconds, size)
