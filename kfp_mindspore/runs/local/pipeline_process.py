"""A local run's entrypoint: `python -m kfp_mindspore.runs.local.pipeline_process DIRECTORY`.

kfp.local executes tasks in the calling process, prints to its standard output, replaces its logging handlers and keeps
global state. A subprocess isolates the user's process and can be terminated as a group. Standard input is a pipe held
by the parent: on EOF the parent has died, and this process terminates the group.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kfp_mindspore import events
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.files import read_json
from kfp_mindspore.runs.local.history import ATTEMPTS_FOLDER, PIPELINE_FILE, REQUEST_FILE
from kfp_mindspore.settings import READS_VARIABLE, STEP_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.runs.local.step_inputs import StepInputs

GRACE_SECONDS = 5.0

_stopping = threading.Event()


class StepOutput(io.TextIOBase):
    """Standard output that is also written to the log for the step that the thread executes.

    Args:
        base: The run's standard output.
    """

    def __init__(self, base: TextIO) -> None:
        self._base = base
        self._local = threading.local()

    def write(self, text: str) -> int:
        """Write to the run's log and to the current step's log."""
        self._base.write(text)
        file: TextIO | None = getattr(self._local, "file", None)
        if file is not None:
            file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush both logs."""
        self._base.flush()
        file: TextIO | None = getattr(self._local, "file", None)
        if file is not None:
            file.flush()

    @contextmanager
    def redirect(self, path: Path) -> Iterator[None]:
        """Also append this thread's output in the block to a step's log."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace") as file:
            self._local.file = file
            try:
                yield
            finally:
                self._local.file = None


def main() -> None:
    """Read the request, run the pipeline and emit events."""
    directory = Path(sys.argv[1])
    _watch_parent()
    signal.signal(signal.SIGTERM, lambda *_: _stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = StepOutput(sys.stdout)
    sys.stdout = output
    try:
        _run(directory, read_json(directory / REQUEST_FILE), output)
    except KfpMindSporeError as error:
        _fail(str(error.message), error.hint, isinstance(error, UserError))
    except Exception as error:  # noqa: BLE001 - the outermost frame: each error must reach the run's result
        traceback.print_exc()
        lines = traceback.format_exception_only(type(error), error)
        _fail(" ".join("".join(lines).split()), f"Full log: {directory / 'run.log'}", False)
    sys.stdout.flush()


def _run(directory: Path, request: dict[str, Any], output: StepOutput) -> None:
    # Importing kfp takes seconds: the parent is watched before it.
    from kfp_mindspore.compat.lazy_kfp import import_kfp

    import_kfp()
    from kfp import components, local

    from kfp_mindspore.compat import kfp_conditions
    from kfp_mindspore.runs.compiled import data_sources, spec
    from kfp_mindspore.runs.compiled.sources import load_spec

    compiled = directory / PIPELINE_FILE
    pipeline = spec.read_spec(compiled) if compiled.exists() else load_spec(request["source"])
    if request["project"]:
        # `python -m` searches the working directory before PYTHONPATH: another project's modules must not be found.
        os.chdir(request["project"])
    arguments = spec.convert_arguments(pipeline, request["arguments"])
    data_sources.check_local_sources(pipeline, arguments)
    prepared = spec.set_environment(spec.disable_exit_task_caching(pipeline), request["environment"], STEP_VARIABLE)
    text = spec.dump_spec(prepared)
    compiled.write_text(text)
    shown = {parameter.name: parameter.default for parameter in spec.list_parameters(pipeline)} | arguments
    events.emit("plan", spec.get_pipeline_name(pipeline), steps=spec.list_steps(pipeline), arguments=shown)

    kfp_conditions.install()
    inputs = _make_step_inputs(directory, request) if request["cache"] else None
    _emit_task_events(directory / "logs", output, inputs)
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(directory / "artifacts"),
        workspace_root=str(directory / "workspace"),
        enable_caching=request["cache"] is not None,
        cache_root=request["cache"],
        raise_on_error=False,
    )
    # Defaults are passed explicitly: kfp reads 10 from compiled YAML as 10.0, which changes the cache key.
    given = {name: value for name, value in shown.items() if value is not None}
    task = components.load_component_from_text(text)(**given)
    if kfp_conditions.unresolved:
        missing = ", ".join(dict.fromkeys(kfp_conditions.unresolved))
        raise KfpMindSporeError(
            f"a condition could not be evaluated: {missing} has no value",
            hint="Its branch was skipped. A condition can use outputs of earlier steps and pipeline parameters.",
        )
    events.emit("finish", spec.get_pipeline_name(pipeline), outputs=_to_json(getattr(task, "outputs", None) or {}))


def _make_step_inputs(directory: Path, request: dict[str, Any]) -> StepInputs:
    from kfp_mindspore.runs.local.step_inputs import StepInputs

    reads = Path(os.environ[READS_VARIABLE])
    reads.mkdir(parents=True, exist_ok=True)
    is_read = request["reads_cache"] or (directory / ATTEMPTS_FOLDER).is_dir()
    return StepInputs(Path(request["cache"]), reads, directory.parent.parent, is_read=is_read)


def _emit_task_events(logs: Path, output: StepOutput, inputs: StepInputs | None) -> None:
    """Emit an event for each task start and end, cached ones included."""
    from kfp.local import status

    from kfp_mindspore.compat import kfp_tasks
    from kfp_mindspore.runs.compiled.spec import get_step_name

    current = threading.local()

    def on_run(arguments: Any) -> None:
        current.is_cached = False
        events.emit("task", current.step, state="running", arguments=_to_json(arguments))

    def on_task(task: Any, store: Any, execute: kfp_tasks.Execute) -> tuple[dict[str, Any], Any]:
        step = current.step = get_step_name(task.component_ref.name)
        current.is_cached = True
        current.note = ""
        if _stopping.is_set():
            return {}, status.Status.FAILURE
        if inputs is not None:
            # Importers are not looked up in the cache, which begins the task otherwise.
            inputs.begin(step, [])
        start = time.perf_counter()
        with output.redirect(logs / f"{step}.log"):
            try:
                outputs, state = execute()
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                events.emit("task", step, state="failed", seconds=time.perf_counter() - start)
                raise
        seconds = time.perf_counter() - start
        if state != status.Status.SUCCESS:
            events.emit("task", step, state="failed", seconds=seconds)
            return outputs, state
        _create_metadata_files(outputs)
        event = {"seconds": seconds, "outputs": _to_json(outputs)}
        if current.is_cached and inputs is not None:
            current.note = inputs.describe_unknown()
        if current.note:
            event["note"] = current.note
        if current.is_cached:
            event["arguments"] = _to_json(kfp_tasks.make_arguments(task, store))
        events.emit("task", step, state="cached" if current.is_cached else "succeeded", **event)
        return outputs, state

    kfp_tasks.install(on_task, on_run)
    if inputs is not None:

        def store(key: str, put: Callable[[], None]) -> None:
            current.note = inputs.store(key, put)

        kfp_tasks.install_cache(lambda values: inputs.begin(current.step, values), inputs.is_unchanged, store)


def _create_metadata_files(outputs: dict[str, Any]) -> None:
    """Create metadata-only artifacts' files; kfp's cache discards outputs whose files are missing."""
    for value in outputs.values():
        if getattr(value, "schema_title", "").endswith("Metrics") and Path(value.uri).is_absolute():
            Path(value.uri).parent.mkdir(parents=True, exist_ok=True)
            Path(value.uri).touch()


def _to_json(value: Any) -> Any:
    """Convert a task's outputs to JSON types; an artifact becomes uri, type and metadata."""
    if isinstance(value, dict):
        return {str(key): _to_json(entry) for key, entry in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [_to_json(entry) for entry in value]
    if hasattr(value, "schema_title"):
        return {"uri": value.uri, "type": value.schema_title, "metadata": _to_json(value.metadata)}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _fail(message: str, hint: str, is_user_error: bool) -> None:
    events.emit("failure", "run", message=message, hint=hint, is_user_error=is_user_error)


def _watch_parent() -> None:
    def watch() -> None:
        while os.read(0, 4096):
            pass
        _stopping.set()
        # This process handles SIGTERM; its steps get a grace period to delete their jobs.
        os.killpg(0, signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


if __name__ == "__main__":
    main()
