"""Task details of a run on a server: the steps among the nodes of its Argo Workflow, and the pods of failed steps.

KFP 2.17 returns one task per node: the Workflow itself, `root`, one DAG per step, its driver, `executor`, and with
retries `executor(0)`. `pod_name` is empty; `child_tasks` hold the node IDs of the children.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

FINISHED_STATES = ("SUCCEEDED", "FAILED", "SKIPPED", "CANCELED")
# Of several nodes of a step, such as the iterations of a loop, the first of these states is the step's.
_PRECEDENCE = ("FAILED", "CANCELED", "CANCELING", "RUNNING", "PENDING", "PAUSED", "SUCCEEDED", "SKIPPED")
_DRIVER = "-driver"
# Templates of KFP's Argo compiler for the pod of a step, without and with a retry policy.
_TEMPLATES = ("system-container-impl", "retry-system-container-impl")
# Nodes without a step; the Workflow's name has a generated suffix.
_INTERNAL_NODE = re.compile(r"(root|executor|iteration-item|iteration-iterations|.*-driver|.*-[a-z0-9]{5})?(\(.*\))?")


def list_task_names(spec: Any) -> list[str]:
    """Return the names of the tasks with a container in the pipeline of a run, in all its DAGs.

    Args:
        spec: The run's `pipeline_spec`: the compiled pipeline, alone or in an object with its platform configuration.
    """
    if not isinstance(spec, Mapping):
        return []
    spec = spec.get("pipeline_spec") or spec
    components: Mapping[str, Any] = spec.get("components") or {}
    names = []
    for component in (spec.get("root") or {}, *components.values()):
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            if "executorLabel" in components.get(task["componentRef"]["name"], {}):
                names.append(name)
    return list(dict.fromkeys(names))


def get_step_states(details: Sequence[Any], names: Sequence[str]) -> dict[str, str]:
    """Return the state of each step that has started, by name.

    Args:
        details: The run's task details.
        names: Names of the pipeline's tasks; empty if unknown.
    """
    states: dict[str, str] = {}
    for task in sorted(details, key=lambda task: str(task.start_time or "")):
        name = str(task.display_name or "")
        state = task.state or "PENDING"
        # A step whose driver failed has no node of its own.
        step = name.removesuffix(_DRIVER) if state == "FAILED" and name not in names else name
        if step in names if names else not _is_internal(step):
            states[step] = min(states.get(step, state), state, key=_rank)
    return states


def list_failed_pods(details: Sequence[Any]) -> list[str]:
    """Return the names that the pods of failed steps may have, the last attempt of a step first.

    A node ID is `WORKFLOW-NUMBER`, and its pod is `WORKFLOW-TEMPLATE-NUMBER`.
    """
    pods = []
    for task in details:
        if task.state == "FAILED":
            for child in reversed(task.child_tasks or []):
                workflow, _, number = str(child.pod_name or "").rpartition("-")
                if workflow:
                    pods += [f"{workflow}-{template}-{number}" for template in _TEMPLATES]
    return list(dict.fromkeys(pods))


def _is_internal(name: str) -> bool:
    return _INTERNAL_NODE.fullmatch(name) is not None


def _rank(state: str) -> int:
    return _PRECEDENCE.index(state) if state in _PRECEDENCE else 0
