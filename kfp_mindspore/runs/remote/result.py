"""A run's result on a server, from step logs.

KFP 2.17's API has no task outputs. KFP's launcher, since 2.0, logs a step's output before it publishes it:
`ExecutorOutput: {"parameterValues": …, "artifacts": …}`. The API serves pod logs, from Argo's archive when a pod is
gone. A step that was taken from the cache has no such pod; the driver logs the execution that computed it,
`custom_properties:{key:"cached_execution_id" value:{string_value:"11"}}`, which is another run's task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.runs.compiled.known_tasks import list_known_tasks
from kfp_mindspore.runs.remote.records import RemoteRun
from kfp_mindspore.runs.report.result import RunResult, StepResult, StepState, build_error

_OUTPUT = "ExecutorOutput: {"
_STATES: Mapping[str, StepState] = {
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "CANCELED": "failed",
    "RUNNING": "running",
    "SKIPPED": "skipped",
}
_UNREAD = "its outputs are not in a log, and its pod may be gone"
# The spaces in protobuf's text format vary.
_CACHED_EXECUTION = re.compile(r'key: *"cached_execution_id" *value: *\{ *string_value: *"(\d+)"')
_CACHED = "outputs of cached steps are in the runs that computed them"


def build_result(
    run: RemoteRun,
    spec: Mapping[str, Any],
    arguments: Mapping[str, Any],
    seconds: Mapping[str, float],
    read_log: Callable[[str], Iterable[str]],
    cached: int = 0,
    read_cached: Callable[[str], Iterable[str]] = lambda _: (),
) -> RunResult:
    """Return a finished run's result, as far as the steps' logs have it.

    Args:
        run: The run.
        spec: The run's compiled pipeline; empty if the version was deleted.
        arguments: The run's arguments.
        seconds: The steps' durations by name.
        read_log: Returns a step's log, from the pod that succeeded; empty without one.
        cached: Steps that were taken from the cache; task details do not name them.
        read_cached: Returns the log of the step that computed a cached step's outputs; empty if it is unknown.

    Returns:
        The result; `error` is a GateNotMetError if a gate was not met, `notes` names steps whose outputs are unknown.
    """
    known = {task.name: task for task in list_known_tasks(spec, arguments)} if spec else {}
    result = RunResult(run.run_id, str(spec["pipelineInfo"]["name"]) if spec else "", Path())
    result.arguments = dict(arguments)
    for name, state in run.steps.items():
        step = StepResult(name, _STATES.get(state, "pending"), seconds.get(name, 0.0))
        result.steps[name] = step
        definitions = _get_outputs(spec, name) if spec else {}
        if name in known:
            step.arguments = dict(known[name].arguments)
        if step.state == "succeeded" and (definitions or not spec):
            found = parse_outputs(read_log(name), definitions)
            if not found and cached and definitions and (found := parse_outputs(read_cached(name), definitions)):
                step.state = "cached"
            step.outputs, step.note = found or {}, _UNREAD if definitions and not found else ""
    result.note = run.note
    unread = [step for step in result.steps.values() if step.note]
    if unread and len(unread) == cached - sum(step.state == "cached" for step in result.steps.values()):
        result.note = _CACHED
        for step in unread:
            step.state, step.note = "cached", ""
    is_failed = any(step.state == "failed" for step in result.steps.values())
    result.error = None if is_failed else build_error(result, {})
    result.state = "refused" if result.error is not None else "succeeded" if run.state == "SUCCEEDED" else "failed"
    return result


def parse_outputs(log: Iterable[str], definitions: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the outputs in a step's log, artifacts as `uri`, `type` and `metadata`; None if it has none.

    Args:
        log: The log's lines.
        definitions: The component's `outputDefinitions`.
    """
    # A program may print the same words; KFP's launcher logs after it.
    _, found, text = "\n".join(log).rpartition(_OUTPUT)
    try:
        document, _ = json.JSONDecoder().raw_decode("{" + text) if found else (None, 0)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    outputs: dict[str, Any] = dict(document.get("parameterValues") or {})
    types = definitions.get("artifacts", {})
    for name, entry in (document.get("artifacts") or {}).items():
        for artifact in entry.get("artifacts", ())[:1]:
            kind = types.get(name, {}).get("artifactType", {}).get("schemaTitle", "")
            outputs[name] = {"uri": artifact.get("uri", ""), "type": kind, "metadata": artifact.get("metadata") or {}}
    return outputs


def find_cached_execution(log: Iterable[str]) -> str:
    """Return the ID of the execution that computed a cached step's outputs, from the driver's log; empty if none."""
    return next((found[1] for line in log if (found := _CACHED_EXECUTION.search(line))), "")


def _get_outputs(spec: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """Return a task component's output definitions."""
    components: Mapping[str, Any] = spec.get("components", {})
    for component in (spec["root"], *components.values()):
        found = component.get("dag", {}).get("tasks", {}).get(task)
        if found is not None:
            outputs: Mapping[str, Any] = components.get(found["componentRef"]["name"], {}).get("outputDefinitions", {})
            return outputs
    return {}


def get_spec(pipeline_spec: Any) -> Mapping[str, Any]:
    """Return a run's compiled pipeline, which may be in an object with the platform configuration."""
    spec = pipeline_spec if isinstance(pipeline_spec, Mapping) else {}
    found: Mapping[str, Any] = spec.get("pipeline_spec") or spec
    return found
