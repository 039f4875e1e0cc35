"""Continuing a local run that was interrupted, killed or failed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.runs.compiled import sources
from kfp_mindspore.runs.local.code_digest import compute_code_digest
from kfp_mindspore.runs.local.history import (
    ATTEMPTS_FOLDER,
    PIPELINE_FILE,
    REPORT_FILE,
    REQUEST_FILE,
    RESULT_FILE,
    StoredRun,
    get_run,
    list_runs,
)
from kfp_mindspore.runs.local.run import OnProgress, check_module_names, execute_request
from kfp_mindspore.runs.report.result import RESUMABLE_STATES, RunResult
from kfp_mindspore.settings import CODE_DIGEST_VARIABLE

# What an attempt writes, apart from artifacts and checkpoints.
_ATTEMPT_FILES = ("events.jsonl", "run.log", "logs", "reads", RESULT_FILE, REPORT_FILE)


def resume_local(
    name: str = "",
    *,
    home: Path | None = None,
    accept_changes: bool = False,
    on_progress: OnProgress | None = None,
    on_log: Callable[[str], None] | None = None,
    report: bool = True,
    raise_on_error: bool = True,
) -> RunResult:
    """Continue an interrupted, killed or failed run with the run's parameters and wait until it has finished.

    Finished steps are taken from the cache, training continues at the last checkpoint, and all other steps run. Steps
    with caching disabled, such as deployments, run again. Earlier attempts' logs are in the run directory's
    `attempts/`.

    Args:
        name: Run ID; the newest run without one.
        home: Local state directory; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
        accept_changes: Whether to continue although code has changed since the run's start: finished steps with
            unchanged code and inputs are kept, training continues at the checkpoint with the new code.
        on_progress: Called with the result so far and the new events, several times a second.
        on_log: Called with each output line from the steps.
        report: Whether to write `report.html`.
        raise_on_error: Whether to raise the run's error instead of returning it in the result.

    Returns:
        The result, as for `run_local`.

    Raises:
        NotFoundError: The run does not exist.
        UserError: The run is running or has finished, or code has changed and `accept_changes` is False.
        GateNotMetError: A step returned a false output `passed`.
        ProcessFailedError: A step failed; the message has the last log lines.
        KeyboardInterrupt: The run was interrupted again.
    """
    run = get_run(name, home)
    _check_state(run)
    request = files.read_json(run.directory / REQUEST_FILE)
    if "reads_cache" not in request:
        raise UserError(f"run {run.id}: was started by a version of kfp-mindspore that cannot resume runs")
    changes = _list_changes(request)
    if changes and not accept_changes:
        raise UserError(
            f"run {run.id}: since its start {' and '.join(changes)} changed",
            hint="Continue it with the changed code: --accept-changes. Or start a new run, whose unchanged steps come "
            "from the cache.",
        )
    check_module_names(Path(request["project"]) if request["project"] else None)
    result = RunResult(id=run.id, pipeline=request["source"], directory=run.directory, started=time.time())
    if changes:
        result.note = f"resumed, although {' and '.join(changes)} changed since its start"

    def prepare() -> None:
        _archive_attempt(run.directory)
        if changes and request["source"]:
            (run.directory / PIPELINE_FILE).unlink(missing_ok=True)

    return execute_request(
        result,
        request,
        on_progress=on_progress,
        on_log=on_log,
        report=report,
        raise_on_error=raise_on_error,
        prepare=prepare,
    )


def get_last_run(source: str, home: Path | None = None) -> StoredRun:
    """Return the newest run of a pipeline.

    Args:
        source: A pipeline's source, as for `run_local`.
        home: Local state directory.

    Raises:
        NotFoundError: The pipeline does not exist or has no run.
    """
    sources.check_source(source)
    wanted = sources.make_absolute(source)
    for run in list_runs(home):
        if files.read_json(run.directory / REQUEST_FILE).get("source") == wanted:
            return run
    raise NotFoundError(f"{source}: has no run to resume", hint=f"Start one: kfp-mindspore run {source}")


def _check_state(run: StoredRun) -> None:
    if run.state == "running":
        raise UserError(f"run {run.id}: is running", hint="Wait for its end, or interrupt it with Ctrl-C.")
    if run.state not in RESUMABLE_STATES:
        gate = " by its gate" if run.state == "refused" else ""
        raise UserError(
            f"run {run.id}: nothing to resume, it {'was ' if gate else 'has '}{run.state}{gate}",
            hint="A new run takes unchanged steps from the cache: kfp-mindspore run …",
        )


def _list_changes(request: dict[str, Any]) -> list[str]:
    """Return what has changed since the run's start: the pipeline's file, other code."""
    path = sources.get_file(request["source"]) if request["source"] else None
    if path is not None:
        sources.check_source(request["source"])
        if files.digest_file(path) != request["source_digest"]:
            return [str(path)]
    project = request["project"]
    if (compute_code_digest(Path(project) if project else None) or "") != request["environment"][CODE_DIGEST_VARIABLE]:
        return [f"Python code in {project} or of kfp-mindspore" if project else "the code of kfp-mindspore"]
    return []


def _archive_attempt(directory: Path) -> None:
    """Move what the last attempt wrote to `attempts/<number>`."""
    attempts = directory / ATTEMPTS_FOLDER
    target = attempts / str(1 + sum(1 for _ in attempts.glob("*")))
    target.mkdir(parents=True)
    for name in _ATTEMPT_FILES:
        if (directory / name).exists():
            shutil.move(directory / name, target / name)
