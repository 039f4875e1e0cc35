"""Local pipeline runs by kfp.local."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
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
from kfp_mindspore.local.reads import add_recorder
from kfp_mindspore.runs.compiled import sources
from kfp_mindspore.runs.compiled.spec import dump_spec
from kfp_mindspore.runs.local.code_digest import MAXIMUM_FILES, compute_code_digest
from kfp_mindspore.runs.local.history import (
    ACTIVE_FILE,
    CHECKPOINTS_FOLDER,
    PIPELINE_FILE,
    REPORT_FILE,
    REQUEST_FILE,
    RESULT_FILE,
)
from kfp_mindspore.runs.log import LAST_LINES, read_last_step_lines
from kfp_mindspore.runs.report.result import RunResult, build_error
from kfp_mindspore.runs.report.tracker import RunTracker
from kfp_mindspore.settings import (
    BACKEND_VARIABLE,
    CALLER_TMPDIR_VARIABLE,
    CODE_DIGEST_VARIABLE,
    EVENTS_VARIABLE,
    HOME_VARIABLE,
    LOCAL,
    READS_VARIABLE,
    RESUMED_VARIABLE,
    RUN_CHECKPOINTS_VARIABLE,
    STEP_VARIABLE,
)

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
    """Run a pipeline on this machine and wait until it has finished.

    Each step is a subprocess; logs and artifacts are written to `home/runs/<id>/`. A step is taken from the cache if
    these are unchanged: the arguments, the content in local files that they name, and the modules and files that its
    Python processes opened. `RunResult.notes` has what was not compared, such as the content of URIs. `resume_local`
    continues a run that did not finish.

    Args:
        pipeline: A function with `@dsl.pipeline`, the name of a pipeline in this package, `path.py[:function]`, or a
            compiled pipeline's path.
        arguments: Pipeline arguments; text is parsed as the parameter's type.
        home: Local state directory; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
        keep: Keep the run's jobs and services. Otherwise they are stored in the run's directory, separate from kept
            ones with the same name, and terminated with the run, also when this process is killed.
        cache: Whether to read and write the cache.
        project: Directory with the user's code: on the steps' import path, their working directory, and part of the
            cache key; default the pipeline file's directory, or the working directory for a function in a notebook.
        on_progress: Called with the result so far and the new events, several times a second.
        on_log: Called with each output line from the steps.
        report: Whether to write `report.html`.
        raise_on_error: Whether to raise the run's error instead of returning it in the result.

    Returns:
        The result: state, steps with durations and outputs, report.

    Raises:
        UserError: The pipeline does not exist, an argument is unknown, missing or has the wrong type, or a module of
            the project has the name of one of Python's standard library.
        GateNotMetError: A step returned a false output `passed`.
        ProcessFailedError: A step failed; the message has the last log lines.
        KeyboardInterrupt: The run was interrupted; the message names log and report.
    """
    home = (home or files.get_home()).absolute()
    source, compiled = (str(pipeline), None) if isinstance(pipeline, (str, Path)) else ("", pipeline)
    if compiled is None:
        sources.check_source(source)
        project = project or sources.get_project_directory(source)
    else:
        project = project or _get_module_directory(compiled)
    check_module_names(project)
    name = sources.get_name(source) if compiled is None else getattr(compiled, "name", "pipeline")
    directory = _make_directory(home, name)
    result = RunResult(id=directory.name, pipeline=source, directory=directory, started=time.time())
    if compiled is not None:
        files.write_text(directory / PIPELINE_FILE, dump_spec(sources.compile_pipeline(compiled)))
    digest = compute_code_digest(project)
    if cache and digest is None:
        result.note = f"nothing is cached: {project} has more than {MAXIMUM_FILES:,} Python files"
    path = sources.get_file(source)
    request = {
        "source": sources.make_absolute(source),
        "source_digest": "" if path is None else files.digest_file(path),
        "project": str(project.absolute()) if project else "",
        "arguments": dict(arguments or {}),
        "environment": {CODE_DIGEST_VARIABLE: digest or ""},
        # A run that reads no cache has its own, from which it is resumed.
        "cache": str((home if cache else directory) / "cache") if digest else None,
        "reads_cache": cache,
        "keep": keep,
    }
    files.write_json(directory / REQUEST_FILE, request)
    return execute_request(
        result, request, on_progress=on_progress, on_log=on_log, report=report, raise_on_error=raise_on_error
    )


def execute_request(
    result: RunResult,
    request: Mapping[str, Any],
    *,
    on_progress: OnProgress | None = None,
    on_log: Callable[[str], None] | None = None,
    report: bool = True,
    raise_on_error: bool = True,
    prepare: Callable[[], None] | None = None,
) -> RunResult:
    """Execute the request of a run's directory; see `run_local`.

    Args:
        result: The run, whose directory exists.
        request: Content of `request.json`.
        on_progress: Called with the result so far and the new events.
        on_log: Called with each output line from the steps.
        report: Whether to write `report.html`.
        raise_on_error: Whether to raise the run's error.
        prepare: Of a resumed run: called once no process of the earlier attempt is left.
    """
    directory = result.directory
    project = Path(request["project"]) if request["project"] else None
    state_home = directory.parent.parent if request["keep"] else directory / "home"
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(Lease.hold(directory / ACTIVE_FILE))
        if prepare is not None:
            _terminate_services_and_jobs(state_home, directory / CHECKPOINTS_FOLDER if request["keep"] else None)
            prepare()
        lease = None if request["keep"] else stack.enter_context(Lease.hold(directory / "lease"))
        if lease is not None:
            stack.callback(_terminate_services_and_jobs, state_home)
        environment = _make_environment(directory, state_home, lease, project)
        if prepare is not None:
            environment[RESUMED_VARIABLE] = "1"
        try:
            _execute(result, environment, on_progress, on_log)
        except KeyboardInterrupt:
            result.state = "interrupted"
            result.seconds = time.perf_counter() - begin
            # A second Ctrl-C may end the clean-up.
            files.write_json(directory / RESULT_FILE, result.to_dict())
        finally:
            shutil.rmtree(directory / "tmp", ignore_errors=True)
    # Includes terminating jobs and services.
    result.seconds = time.perf_counter() - begin
    if isinstance(result.error, UserError) and not result.steps and prepare is None:
        # No step was started: leave no run directory.
        shutil.rmtree(directory, ignore_errors=True)
        return result.check() if raise_on_error else result
    if not result.is_resumable:
        shutil.rmtree(directory / CHECKPOINTS_FOLDER, ignore_errors=True)
    if report:
        from kfp_mindspore.runs.report.page import write_report

        result.report = write_report(result, directory / REPORT_FILE)
    files.write_json(directory / RESULT_FILE, result.to_dict())
    if result.state == "interrupted":
        lines = [f"Log: {directory / 'run.log'}", *([f"Report: {result.report}"] if result.report else [])]
        raise KeyboardInterrupt("\n".join([*lines, f"Continue it: kfp-mindspore runs resume {result.id}"]))
    return result.check() if raise_on_error else result


def _execute(
    result: RunResult,
    environment: Mapping[str, str],
    on_progress: OnProgress | None,
    on_log: Callable[[str], None] | None,
) -> None:
    """Run the pipeline process, follow the events until it exits, and complete the result."""
    from kfp_mindspore.local.logs import LogReader

    directory = result.directory
    tracker = RunTracker(result, directory / "events.jsonl", directory / "logs")
    log = LogReader(directory / "run.log")
    with contextlib.ExitStack() as stack:
        # Called last, after the process was terminated: an interrupted run's final states.
        stack.callback(lambda: tracker.read(final=True))
        process = stack.enter_context(_start_process(directory, environment))
        # While it imports kfp.
        _import_for_end()
        has_exited = False
        while not has_exited:
            has_exited = process.poll() is not None
            fresh = tracker.read(final=has_exited)
            if on_log is not None:
                for line in log.read(final=has_exited):
                    on_log(line)
            if on_progress is not None and (fresh or not has_exited):
                on_progress(result, fresh)
            if not has_exited:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
    last_lines = {
        step.name: read_last_step_lines(step.log)
        for step in result.steps.values()
        if step.state == "failed" and step.log
    }
    result.error = _get_error(result, tracker, process.returncode, last_lines)
    if result.error is None:
        result.state = "succeeded"
    else:
        result.state = "refused" if result.error.exit_code == 3 else "failed"


def _get_error(
    result: RunResult, tracker: RunTracker, exit_code: int, last_lines: Mapping[str, list[str]]
) -> KfpMindSporeError | None:
    error = build_error(result, last_lines)
    if error is not None:
        return error
    if tracker.failure is not None:
        kind = UserError if tracker.failure["is_user_error"] else KfpMindSporeError
        return kind(tracker.failure["message"], hint=tracker.failure["hint"])
    if not tracker.is_finished:
        log = result.directory / "run.log"
        return ProcessFailedError(
            f"the process of the pipeline exited early (exit code {exit_code})",
            log=read_last_lines(log, LAST_LINES),
            hint=f"Full log: {log}",
        )
    return None


@contextlib.contextmanager
def _start_process(directory: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline process in a new session; terminate it and the steps when the block exits."""
    with (directory / "run.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kfp_mindspore.runs.local.pipeline_process", str(directory)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop_process(process)


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    # A second Ctrl-C only shortens the grace period; no process may be left behind.
    try:
        if process.poll() is None:
            kill_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        if is_group_alive(process.pid):
            terminate_group(process.pid, 1.0)
    finally:
        kill_group(process.pid)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def check_module_names(project: Path | None) -> None:
    """Refuse a project whose modules would replace the standard library's: it is on each step's import path.

    Args:
        project: The project's directory.

    Raises:
        UserError: It has such modules; the message names them.
    """
    modules = (
        [] if project is None else [*project.glob("*.py"), *(file.parent for file in project.glob("*/__init__.py"))]
    )
    if shadowing := sorted(str(path) for path in modules if path.stem in sys.stdlib_module_names):
        raise UserError(
            f"{', '.join(shadowing)}: named as a module of Python's standard library, "
            "which each process of a step would import instead",
            hint=f"Rename it, such as my_{Path(shadowing[0]).name}.",
        )


def _make_environment(directory: Path, home: Path, lease: Lease | None, project: Path | None) -> dict[str, str]:
    temporary = directory / "tmp"
    # Of a killed run.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    # Steps start `python`: this interpreter, even if its directory is not on PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        # Logs are UTF-8, also under another locale: kfp.local could not decode what a step prints.
        "PYTHONUTF8": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        EVENTS_VARIABLE: str(directory / "events.jsonl"),
        HOME_VARIABLE: str(home),
        BACKEND_VARIABLE: LOCAL,
        READS_VARIABLE: str(directory / "reads"),
        RUN_CHECKPOINTS_VARIABLE: str(directory / CHECKPOINTS_FOLDER),
    }
    for name in (STEP_VARIABLE, RESUMED_VARIABLE):
        environment.pop(name, None)
    if project is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH", "")]))
    environment = add_recorder(environment)
    # Each step writes its code to a new directory in TMPDIR: outside the run it would be recorded as an input.
    environment["TMPDIR"] = str(temporary)
    # There the paths of Ray's sockets would be too long.
    environment.setdefault("RAY_TMPDIR", os.environ.get("TMPDIR") or "/tmp")
    if lease is not None:
        environment.update(lease.environment)
    else:
        environment[CALLER_TMPDIR_VARIABLE] = os.environ.get("TMPDIR", "")
    return environment


def _import_for_end() -> None:
    """Import what each run needs at the end."""
    for name in ("inference.client", "inference.backends.local", "runs.report"):
        importlib.import_module(f"kfp_mindspore.{name}")


def _terminate_services_and_jobs(home: Path, checkpoints: Path | None = None) -> None:
    """Terminate the services and jobs in a run's own home, or only the jobs with checkpoints in a directory.

    Their logs are kept.
    """
    if checkpoints is None and (home / "services").is_dir():
        from kfp_mindspore.inference import InferenceClient, LocalServingBackend

        services = InferenceClient(LocalServingBackend(home))
        for service in services.list(all_namespaces=True):
            with contextlib.suppress(KfpMindSporeError):
                services.stop(service.name, service.namespace)
    for namespace in sorted((home / "jobs").glob("*")):
        from kfp_mindspore.msjob import LocalBackend, MSJobClient

        jobs = MSJobClient(LocalBackend(home), namespace=namespace.name)
        for job in jobs.list_jobs():
            if checkpoints is not None and str(checkpoints) not in json.dumps(job.to_dict()["spec"]):
                continue
            with contextlib.suppress(KfpMindSporeError):
                if not (jobs.is_job_succeeded(job.name) or jobs.is_job_failed(job.name)):
                    jobs.delete_job(job.name)


def _make_directory(home: Path, name: str) -> Path:
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "pipeline"
    directory = home / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        hint = f"Set {HOME_VARIABLE} to a directory that you can write to."
        raise UserError(f"{directory}: cannot be created: {error.strerror or error}", hint=hint) from error
    return directory


def _get_module_directory(pipeline: Any) -> Path:
    function = getattr(pipeline, "pipeline_func", None) or getattr(pipeline, "python_func", None)
    file = getattr(sys.modules.get(getattr(function, "__module__", ""), None), "__file__", None)
    return Path(file).absolute().parent if file else Path.cwd()
