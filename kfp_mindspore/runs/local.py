"""Runs a pipeline on this machine, the same that a cluster runs, by kfp.local."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.local.logs import read_last_lines
from kfp_mindspore.local.process import is_group_alive, kill_group, terminate_group
from kfp_mindspore.runs import sources
from kfp_mindspore.runs.code_digest import digest_code
from kfp_mindspore.runs.log import LAST_LINES, read_last_step_lines
from kfp_mindspore.runs.result import RunResult, explain
from kfp_mindspore.runs.spec import dump_spec
from kfp_mindspore.runs.tracker import RunTracker
from kfp_mindspore.settings import BACKEND_VARIABLE, CODE_DIGEST_VARIABLE, EVENTS_VARIABLE, HOME_VARIABLE, STEP_VARIABLE

STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05

OnProgress = Callable[[RunResult, list[dict[str, Any]]], None]


def run_local(
    pipeline: Any,
    arguments: Mapping[str, Any] | None = None,
    *,
    home: Path | None = None,
    keep: bool = False,
    cache: bool = True,
    project: Path | None = None,
    on_progress: OnProgress | None = None,
    on_log: Callable[[str], None] | None = None,
    report: bool = True,
    raise_on_error: bool = True,
) -> RunResult:
    """Run a pipeline on this machine and wait for its end.

    Every step is a process of its own; what they print goes to files below `home/runs/<id>/`. Steps that ran before
    with the same inputs and the same code (the pipeline's, the project's and this package's) are taken from the cache.

    Args:
        pipeline: A function with `@dsl.pipeline`, the name of one of this package's, `path.py[:function]`, or the path
            of a compiled pipeline.
        arguments: The pipeline's arguments; text is read as the parameter's type.
        home: Directory of local state; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
        keep: Let the jobs and services that the run starts outlive it. Otherwise they end with it, also when this
            process is killed, and they live below the run's own directory: kept ones of the same name are untouched.
        cache: Whether to use and fill the cache.
        project: Directory of the user's code: importable in the steps, their working directory, and part of the
            cache's key; default the directory of the pipeline's file, or the working directory for a function of a
            notebook.
        on_progress: Called with the run so far and the new events, some times a second.
        on_log: Called with each line that the steps print.
        report: Whether to write `report.html`.
        raise_on_error: Whether to raise the run's error; otherwise it is in the result.

    Returns:
        The run: state, steps with seconds and outputs, report.

    Raises:
        UserError: There is no such pipeline, or an argument is unknown, missing or of a wrong type.
        GateNotMetError: A step has an output `passed` that is false.
        ProcessFailedError: A step failed; its last lines are in the message.
    """
    home = (home or files.get_home()).absolute()
    source, compiled = (str(pipeline), None) if isinstance(pipeline, (str, Path)) else ("", pipeline)
    if compiled is None:
        sources.check_source(source)
        project = project or sources.get_project_directory(source)
    else:
        project = project or _find_module_directory(compiled)
    directory = _make_directory(home, source or getattr(compiled, "name", "pipeline"))
    result = RunResult(id=directory.name, pipeline=source, directory=directory, started=time.time())
    if compiled is not None:
        files.write_text(directory / "pipeline.yaml", dump_spec(sources.compile_pipeline(compiled)))
    digest = digest_code(project)
    request = {
        "source": source,
        "project": str(project.absolute()) if project else "",
        "arguments": dict(arguments or {}),
        "environment": {CODE_DIGEST_VARIABLE: digest or ""},
        "cache": str(home / "cache") if cache and digest else None,
    }
    files.write_json(directory / "request.json", request)
    state_home = home if keep else directory / "home"
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        lease = None if keep else stack.enter_context(Lease.hold(directory / "lease"))
        if not keep:
            stack.callback(_end_started, state_home)
        environment = _make_environment(directory, state_home, lease, project)
        try:
            _execute(result, environment, on_progress, on_log)
        except KeyboardInterrupt:
            result.state = "interrupted"
            files.write_json(directory / "result.json", result.to_dict())
            raise
        finally:
            result.seconds = time.perf_counter() - begin
            shutil.rmtree(directory / "tmp", ignore_errors=True)
    # What was started is ended by now: that takes its time too.
    result.seconds = time.perf_counter() - begin
    if isinstance(result.error, UserError) and not result.steps:
        # Nothing ran: no directory is left that looks as if something had.
        shutil.rmtree(directory, ignore_errors=True)
        return result.check() if raise_on_error else result
    if report:
        from kfp_mindspore.runs.report import write_report

        result.report = write_report(result, directory / "report.html")
    files.write_json(directory / "result.json", result.to_dict())
    return result.check() if raise_on_error else result


def _execute(
    result: RunResult,
    environment: Mapping[str, str],
    on_progress: OnProgress | None,
    on_log: Callable[[str], None] | None,
) -> None:
    """Start the worker, follow its events until it ends, and complete the result."""
    from kfp_mindspore.local.logs import LogReader

    directory = result.directory
    tracker = RunTracker(result, directory / "events.jsonl", directory / "logs")
    log = LogReader(directory / "run.log")
    with _start_worker(directory, environment) as worker:
        over = False
        while not over:
            over = worker.poll() is not None
            fresh = tracker.read(final=over)
            if on_log is not None:
                for line in log.read(final=over):
                    on_log(line)
            if on_progress is not None and (fresh or not over):
                on_progress(result, fresh)
            if not over:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(_POLL_SECONDS)
    last_lines = {
        step.name: read_last_step_lines(step.log)
        for step in result.steps.values()
        if step.state == "failed" and step.log
    }
    result.error = _find_error(result, tracker, worker.returncode, last_lines)
    if result.error is None:
        result.state = "succeeded"
    else:
        result.state = "refused" if result.error.exit_code == 3 else "failed"


def _find_error(
    result: RunResult, tracker: RunTracker, exit_code: int, last_lines: Mapping[str, list[str]]
) -> KfpMindSporeError | None:
    error = explain(result, last_lines)
    if error is not None:
        return error
    if tracker.failure is not None:
        kind = UserError if tracker.failure["mistake"] else KfpMindSporeError
        return kind(tracker.failure["message"], hint=tracker.failure["hint"])
    if not tracker.is_finished:
        log = result.directory / "run.log"
        return ProcessFailedError(
            f"the run ended before its pipeline did (exit code {exit_code})",
            log=read_last_lines(log, LAST_LINES),
            hint=f"The whole log: {log}",
        )
    return None


@contextlib.contextmanager
def _start_worker(directory: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the worker in a session of its own; leaving the block ends it with all its steps."""
    with (directory / "run.log").open("ab") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "kfp_mindspore.runs.pipeline_process", str(directory)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        _stop_worker(worker)


def _stop_worker(worker: subprocess.Popen[bytes]) -> None:
    # A second Ctrl-C must not leave processes behind: it cuts the grace period short instead.
    try:
        if worker.poll() is None:
            kill_group(worker.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(STOP_SECONDS)
        if is_group_alive(worker.pid):
            terminate_group(worker.pid, 1.0)
    finally:
        kill_group(worker.pid)
        worker.wait()
        if worker.stdin is not None:
            worker.stdin.close()


def _make_environment(directory: Path, home: Path, lease: Lease | None, project: Path | None) -> dict[str, str]:
    temporary = directory / "tmp"
    temporary.mkdir()
    # The steps' interpreter is the one that runs this, also when its folder is not on the PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        EVENTS_VARIABLE: str(directory / "events.jsonl"),
        HOME_VARIABLE: str(home),
        BACKEND_VARIABLE: "local",
    }
    environment.pop(STEP_VARIABLE, None)
    if project is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH", "")]))
    if lease is not None:
        environment.update(lease.environment)
        # Each step leaves an empty folder here; what is kept may still need the machine's own.
        environment["TMPDIR"] = str(temporary)
    return environment


def _end_started(home: Path) -> None:
    """End the services and jobs that a run left below its own home; their logs stay there."""
    if (home / "services").is_dir():
        from kfp_mindspore.inference import InferenceClient, LocalServing

        services = InferenceClient(LocalServing(home))
        for service in services.list(all_namespaces=True):
            with contextlib.suppress(KfpMindSporeError):
                services.stop(service.name, service.namespace)
    for namespace in sorted((home / "jobs").glob("*")):
        from kfp_mindspore.msjob import LocalBackend, MSJobClient

        jobs = MSJobClient(LocalBackend(home), namespace=namespace.name)
        for job in jobs.list_jobs():
            with contextlib.suppress(KfpMindSporeError):
                if not (jobs.is_job_succeeded(job.name) or jobs.is_job_failed(job.name)):
                    jobs.delete_job(job.name)


def _make_directory(home: Path, source: str) -> Path:
    name = Path(source.rpartition(":")[0] if ".py:" in source else source).stem.replace("_", "-")
    directory = home / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be made: {error.strerror or error}") from error
    return directory


def _find_module_directory(pipeline: Any) -> Path:
    function = getattr(pipeline, "pipeline_func", None) or getattr(pipeline, "python_func", None)
    file = getattr(sys.modules.get(getattr(function, "__module__", ""), None), "__file__", None)
    return Path(file).absolute().parent if file else Path.cwd()
