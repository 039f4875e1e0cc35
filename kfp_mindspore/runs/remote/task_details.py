"""A run's task details on a server: the steps among the Argo Workflow's nodes, and failed steps' pods.

KFP 2.17 returns one task per node: the Workflow itself, `root`, one DAG per step, the driver, `executor`, and with
retries `executor(0)`. `pod_name` is empty; `child_tasks` hold the children's node IDs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_mindspore.runs.compiled.spec import walk_tasks

FINISHED_STATES = ("SUCCEEDED", "FAILED", "SKIPPED", "CANCELED")
_UNFINISHED_STATES = ("RUNNING", "PENDING")
# With several nodes for a step, such as a loop's iterations, the first state in this order is the step's.
_PRECEDENCE = ("FAILED", "CANCELED", "CANCELING", "RUNNING", "PENDING", "PAUSED", "SUCCEEDED", "SKIPPED")
_DRIVER = "-driver"
# Templates in KFP's Argo compiler for a step's pod, without and with a retry policy.
_TEMPLATES = ("system-container-impl", "retry-system-container-impl")
_DRIVER_TEMPLATE = "system-container-driver"
_EXECUTOR = "executor"
# Each node may be retried, `STEP(0).executor(0)`.
_ATTEMPT = re.compile(r"\(\d+\)$")


def list_task_names(spec: Any) -> list[str]:
    """Return the names of the tasks with a container in a run's pipeline, in topological order.

    Args:
        spec: The run's `pipeline_spec`: the compiled pipeline, alone or in an object with the platform configuration.
    """
    if not isinstance(spec, Mapping):
        return []
    spec = spec.get("pipeline_spec") or spec
    components: Mapping[str, Any] = spec.get("components") or {}
    tasks = walk_tasks(spec, spec.get("root") or {})
    return list(dict.fromkeys(name for name, component in tasks if "executorLabel" in components.get(component, {})))


def get_step_states(details: Sequence[Any], names: Sequence[str]) -> dict[str, str]:
    """Return the state for each step that has started, by name, in the order of `names`.

    Args:
        details: The run's task details.
        names: The pipeline's task names, or `list_node_steps`.
    """
    states: dict[str, str] = {}
    for task in sorted(details, key=lambda task: str(task.start_time or "")):
        name = str(task.display_name or "")
        state = task.state or "PENDING"
        # A step whose driver failed has no node.
        step = name.removesuffix(_DRIVER) if state == "FAILED" and name not in names else name
        if step in names:
            states[step] = min(states.get(step, state), state, key=_rank)
    return {name: states[name] for name in names if name in states}


def list_node_steps(details: Sequence[Any]) -> list[str]:
    """Return the steps with a container among a Workflow's nodes, by start: of a run whose pipeline is unknown."""
    starts = {str(task.display_name): str(task.start_time or "") for task in reversed(details)}
    paths = [[_ATTEMPT.sub("", part) for part in path.split(".")] for path in _list_paths(details)]
    found = {parts[-2] for parts in paths if parts[-1] == _EXECUTOR}
    # A step whose driver failed has no other node.
    failed = {str(task.display_name) for task in details if task.state == "FAILED"}
    found |= {parts[-1].removesuffix(_DRIVER) for parts in paths if parts[-1] in failed and parts[-1].endswith(_DRIVER)}
    return sorted(found, key=lambda name: starts.get(name) or starts.get(name + _DRIVER, ""))


def list_pending(details: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Return the steps with a pod, or a driver's pod, that has not started.

    Args:
        details: The run's task details.
        names: The pipeline's task names.
    """
    pending = [str(task.display_name or "") for task in details if task.state == "PENDING"]
    found = [_ATTEMPT.sub("", name).removesuffix(_DRIVER) for name in pending]
    return [name for name in dict.fromkeys(found) if name in (*names, "root")]


def are_final(details: Sequence[Any]) -> bool:
    """Return whether a finished run's task details are final: KFP stores them a second after the state."""
    return not any(task.state in _UNFINISHED_STATES for task in details)


def list_failed_pods(details: Sequence[Any]) -> list[str]:
    """Return the names that failed steps' pods may have, a step's last attempt first.

    A node ID is `WORKFLOW-NUMBER`, and the pod is `WORKFLOW-TEMPLATE-NUMBER`.
    """
    pods = []
    for task in details:
        if task.state == "FAILED":
            for child in reversed(task.child_tasks or []):
                workflow, _, number = str(child.pod_name or "").rpartition("-")
                if workflow:
                    pods += [f"{workflow}-{template}-{number}" for template in _TEMPLATES]
    return list(dict.fromkeys(pods))


def list_step_pods(details: Sequence[Any], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that each step's pods may have, the last attempt first.

    Args:
        details: The run's task details.
        names: The pipeline's task names.
    """
    pods: dict[str, list[str]] = {}
    for path in _list_paths(details):
        workflow = _ATTEMPT.sub("", path.partition(".")[0])
        parts = [_ATTEMPT.sub("", part) for part in path.split(".")]
        if parts[-1] == _EXECUTOR and parts[-2] in names:
            number = _get_id(workflow, path).rpartition("-")[2]
            entries = [f"{workflow}-{template}-{number}" for template in _TEMPLATES]
            pods[parts[-2]] = entries + pods.get(parts[-2], [])
    return pods


def list_driver_pods(details: Sequence[Any], step: str) -> list[str]:
    """Return the names of a step's drivers' pods, the last attempt first."""
    pods: list[str] = []
    for path in _list_paths(details):
        workflow, last = (_ATTEMPT.sub("", part) for part in (path.partition(".")[0], path.rpartition(".")[2]))
        if last == step + _DRIVER:
            pods.insert(0, f"{workflow}-{_DRIVER_TEMPLATE}-{_get_id(workflow, path).rpartition('-')[2]}")
    return pods


def _list_paths(details: Sequence[Any]) -> Iterator[str]:
    """Yield the names of a Workflow's nodes: paths of display names, such as `WORKFLOW(0).root(0).train.executor`.

    A node's ID ends with the FNV-1a hash of the name: paths are extended by each display name, and paths whose ID is
    another node's child exist.
    """
    ids = {str(child.pod_name or "") for task in details for child in task.child_tasks or []}
    displays = {str(task.display_name or "") for task in details}
    workflow = next((node.rpartition("-")[0] for node in sorted(ids) if node), "")
    pending = [workflow] if workflow else []
    seen = set(pending)
    while pending:
        path = pending.pop()
        last = path.rpartition(".")[2]
        attempts = {path + name.removeprefix(last) for name in displays if name.startswith(f"{last}(")}
        found = {name for name in {f"{path}.{name}" for name in displays} | attempts if _get_id(workflow, name) in ids}
        pending += sorted(found - seen, reverse=True)
        seen |= found
        yield path


def count_cached(details: Sequence[Any]) -> int:
    """Return how many steps were taken from the cache: Argo skips their pods after the driver."""
    return sum(task.display_name == _EXECUTOR and task.state == "SKIPPED" for task in details)


def get_step_seconds(details: Sequence[Any], names: Sequence[str]) -> dict[str, float]:
    """Return the seconds between each finished step's start and end, summed over a loop's iterations."""
    seconds: dict[str, float] = {}
    for task in details:
        name = str(task.display_name or "")
        # A running task's end is in the year 1.
        if name in names and task.start_time and task.end_time and task.state in FINISHED_STATES:
            seconds[name] = seconds.get(name, 0.0) + (task.end_time - task.start_time).total_seconds()
    return seconds


def _get_id(workflow: str, name: str) -> str:
    """Return the ID that Argo gives to a node."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{workflow}-{value}"


def _rank(state: str) -> int:
    return _PRECEDENCE.index(state) if state in _PRECEDENCE else 0
