"""What the steps of a compiled pipeline need: rights on the cluster, and extras of this package in their image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.runs.cluster.access import CAPABILITIES, Capability
from kfp_mindspore.runs.compiled.known_tasks import STEP_FUNCTION, KnownTask, list_known_tasks
from kfp_mindspore.runs.compiled.spec import PipelineSpec
from kfp_mindspore.settings import BACKEND_VARIABLE, LOCAL


@dataclass(frozen=True)
class StepNeeds:
    """What a component's steps need.

    Args:
        extras: Extras in the image, besides `pipelines`, which each step needs.
        capability: Rights on the cluster; None for none.
    """

    extras: tuple[str, ...] = ()
    capability: Capability | None = None


_JOB = ("artifacts", "kubernetes", "train")
# By the function that the component calls, each once.
STEP_NEEDS: Mapping[str, StepNeeds] = {
    "prepare_dataset": StepNeeds(("data",)),
    "select_from_pool": StepNeeds(("train",)),
    "predict_batch": StepNeeds(("train",)),
    "deploy_service_graph": StepNeeds(("kubernetes",), "deployment"),
    "deploy_model": StepNeeds(("kubernetes",), "deployment"),
    "rollback_service": StepNeeds(("kubernetes",), "deployment"),
    "smoke_test_service": StepNeeds(("kubernetes",), "deployment"),
    "send_notice": StepNeeds(),
    "register_bundle": StepNeeds(("registry",)),
    "compare_with_baseline": StepNeeds(("train",)),
    "evaluate_by_function": StepNeeds(("train",)),
    "evaluate_examples": StepNeeds(("lm", "train")),
    "evaluate_model": StepNeeds(("train",)),
    "monitor_model": StepNeeds(("train",)),
    "select_best_model": StepNeeds(),
    "build_step_image": StepNeeds(("images",), "images"),
    "compress_checkpoint": StepNeeds(("train",)),
    "create_model": StepNeeds(("lm", "train")),
    "export_model": StepNeeds(("train",)),
    "finetune_model": StepNeeds(("lm", "train")),
    "finetune_towers": StepNeeds(("lm", "train")),
    "import_model": StepNeeds(("lm", "train")),
    "import_vision_model": StepNeeds(("lm", "train")),
    "index_folder": StepNeeds(("data", "lm", "train")),
    "train_on_ray": StepNeeds((*_JOB, "ray"), "ray"),
    "stop_jobs": StepNeeds(("kubernetes",), "training"),
    "sweep_models": StepNeeds((*_JOB, "sweeps"), "training"),
    "train_model": StepNeeds(_JOB, "training"),
    # That of `msjob_component`.
    "launch_function": StepNeeds(_JOB, "training"),
}
# Functions whose components have the parameter `queue`.
_QUEUED = frozenset({"sweep_models", "train_model"})
# Arguments that need more, by parameter and value.
_ARGUMENT_EXTRAS = {
    ("engine", "ray"): "ray",
    **{(parameter, "movielens"): "workloads" for parameter in ("name", "data")},
    **{(parameter, "new_testament"): "workloads" for parameter in ("name", "data")},
}
_SOURCE_PARAMETERS = ("name", "validation", "test", "data", "source", "log", "labels", "captions")
_SCHEME_EXTRAS = {"s3": "artifacts", "minio": "artifacts", "gs": "gcs"}


def list_capabilities(spec: PipelineSpec) -> list[Capability]:
    """Return the capabilities that a compiled pipeline's steps need."""
    found: set[Capability] = {"run"}
    for executor in spec.get("deploymentSpec", {}).get("executors", {}).values():
        container = executor.get("container", {})
        env = {entry.get("name"): entry.get("value") for entry in container.get("env", [])}
        if env.get(BACKEND_VARIABLE) == LOCAL:
            continue
        for function in STEP_FUNCTION.findall("\n".join(map(str, container.get("command", [])))):
            if capability := STEP_NEEDS.get(function, StepNeeds()).capability:
                found.add(capability)
    return [capability for capability in CAPABILITIES if capability in found]


def list_namespaces(spec: PipelineSpec, arguments: Mapping[str, Any], default: str) -> dict[Capability, list[str]]:
    """Return the namespaces that a compiled pipeline's steps name by their parameter `namespace`, by capability.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name; defaults are added.
        default: Namespace of steps that name none, the run's.
    """
    found: dict[Capability, list[str]] = {}
    for task in list_known_tasks(spec, arguments):
        for function in task.functions:
            if capability := STEP_NEEDS.get(function, StepNeeds()).capability:
                found.setdefault(capability, []).append(str(task.arguments.get("namespace") or default))
    return {capability: list(dict.fromkeys(names)) for capability, names in found.items()}


def list_queues(spec: PipelineSpec, arguments: Mapping[str, Any], default: str) -> list[tuple[str, str]]:
    """Return namespace and name of the Kueue queues that a compiled pipeline's jobs name.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name; defaults are added.
        default: Namespace of steps that name none, the run's.
    """
    known = [task.arguments for task in list_known_tasks(spec, arguments) if _QUEUED.intersection(task.functions)]
    found = [(str(given.get("namespace") or default), str(given["queue"])) for given in known if given.get("queue")]
    return list(dict.fromkeys(found))


def deploys_language_model(spec: PipelineSpec) -> bool:
    """Return whether a compiled pipeline has steps of language models."""
    functions = STEP_FUNCTION.findall(json.dumps(spec.get("deploymentSpec", {})))
    return any("lm" in STEP_NEEDS.get(function, StepNeeds()).extras for function in functions)


def list_needed_extras(spec: PipelineSpec, arguments: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Return the extras that a compiled pipeline's images need, by image, each with the steps.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name; defaults are added.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for task in list_known_tasks(spec, arguments):
        if not STEP_NEEDS.keys().isdisjoint(task.functions):
            for extra in _list_task_extras(task):
                found.setdefault(task.image, {}).setdefault(extra, []).append(task.name)
    return found


def _list_task_extras(task: KnownTask) -> list[str]:
    extras = {"pipelines"}
    for function in task.functions:
        extras.update(STEP_NEEDS.get(function, StepNeeds()).extras)
    if task.arguments.get("image"):
        # The job's pods have an image of their own.
        extras.discard("train")
    if task.arguments.get("registry"):
        extras.add("registry")
    for parameter, value in task.arguments.items():
        if not isinstance(value, str):
            continue
        extras.add(_ARGUMENT_EXTRAS.get((parameter, value), "pipelines"))
        if parameter in _SOURCE_PARAMETERS:
            extras.add(_SCHEME_EXTRAS.get(value.partition("://")[0], "pipelines"))
    return sorted(extras)
