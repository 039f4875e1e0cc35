"""A failed run's pipeline with another image, in which named steps keep their cached results."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import UserError, join_names, suggest
from kfp_mindspore.runs.compiled.image import set_image
from kfp_mindspore.runs.compiled.spec import PipelineSpec
from kfp_mindspore.runs.remote.records import RemoteRun

RETRYABLE_STATES = ("FAILED", "CANCELED")


def check_retryable(run: RemoteRun) -> None:
    """Check that a run can be retried.

    Raises:
        UserError: It has not failed.
    """
    if run.state in RETRYABLE_STATES:
        return
    hint = "Start another run: kfp-mindspore pipeline run …"
    if not run.is_finished:
        hint = f"Wait for it: kfp-mindspore pipeline get {run.run_id} --wait"
    raise UserError(f"run {run.run_id}: is {run.state}; only failed and terminated runs can be retried", hint=hint)


def replace_image(spec: PipelineSpec, image: str, kept: Sequence[str], states: Mapping[str, str]) -> PipelineSpec:
    """Return a run's pipeline with another image for all steps except those that keep their cached result.

    KFP's cache key has a step's image, command, environment variables and inputs: a kept step has all of them
    unchanged, and so must have the steps that it reads from.

    Args:
        spec: The run's compiled pipeline; not modified.
        image: The new image.
        kept: Step names.
        states: The run's state by step.

    Raises:
        UserError: The image is invalid, or the cache cannot have the result of a named step.
    """
    tasks = dict(_walk(spec, spec["root"]))
    for name in kept:
        _check_kept(tasks, name, kept, states)
    changed = set_image(spec, image)
    executors = changed["deploymentSpec"]["executors"]
    labels = {_get_label(spec, tasks[name]): name for name in kept}
    for name, task in tasks.items():
        owner = labels.get(_get_label(spec, task))
        if owner is not None and name not in kept:
            raise UserError(f"keep-steps: {owner}: has one component with {name}", hint="Name both steps or neither.")
    for label in labels:
        executors[label] = copy.deepcopy(spec["deploymentSpec"]["executors"][label])
    for name, task in _walk(changed, changed["root"]):
        if name in kept:
            # Constants in arguments may be the image.
            task.clear()
            task.update(copy.deepcopy(tasks[name]))
    return changed


def _check_kept(tasks: Mapping[str, Any], name: str, kept: Sequence[str], states: Mapping[str, str]) -> None:
    if name not in tasks:
        raise UserError(
            f"keep-steps: {name}: no such step{suggest(name, tasks, listed=False)}",
            hint=f"The run has: {join_names(tasks)}",
        )
    if states.get(name) != "SUCCEEDED":
        raise UserError(f"keep-steps: {name}: has no result, it is {states.get(name, 'not started')} in this run")
    if not tasks[name].get("cachingOptions", {}).get("enableCache"):
        raise UserError(f"keep-steps: {name}: caching is disabled for it, so that it always runs")
    inputs = tasks[name].get("inputs", {})
    for kind, key in (("artifacts", "taskOutputArtifact"), ("parameters", "taskOutputParameter")):
        for entry in inputs.get(kind, {}).values():
            producer = entry.get(key, {}).get("producerTask", "")
            if producer in tasks and producer not in kept:
                raise UserError(
                    f"keep-steps: {name}: reads from {producer}, which runs again",
                    hint=f"Keep both: --keep-steps {','.join([producer, *kept])}",
                )


def _walk(spec: PipelineSpec, component: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and specification of each task with a container."""
    for name, task in component.get("dag", {}).get("tasks", {}).items():
        inner = spec.get("components", {}).get(task["componentRef"]["name"], {})
        if "executorLabel" in inner:
            yield name, task
        else:
            yield from _walk(spec, inner)


def _get_label(spec: PipelineSpec, task: Mapping[str, Any]) -> str:
    return str(spec["components"][task["componentRef"]["name"]]["executorLabel"])
