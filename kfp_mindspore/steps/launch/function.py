"""The launcher for an `@msjob_component`: runs the function in an MSJob's workers."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.options import from_json
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, OUTPUT_VARIABLE, get_namespace
from kfp_mindspore.steps.handover.executor_input import read_executor_input
from kfp_mindspore.steps.handover.function_files import open_function_files
from kfp_mindspore.steps.handover.task_config import PARAMETER, is_task_config, read_task_config
from kfp_mindspore.steps.launch.job import launch_job
from kfp_mindspore.steps.launch.options import merge_task_options


def launch_function(function: Callable[..., Any], options: str) -> Callable[..., Any]:
    """Return a function with the same signature that runs `function` in an MSJob's workers.

    It works in a KFP step only: inputs and output paths are read from the step's command line.

    Args:
        function: The user's function, from the step's source file.
        options: The decorator's `JobOptions` as JSON.
    """

    @functools.wraps(function)
    def launch(**arguments: object) -> Any:
        given = from_json(JobOptions, options, source="the options of the component")
        return _run_function(function, merge_task_options(given), arguments)

    # kfp reads the parameters without following __wrapped__.
    launch.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return launch


def _run_function(function: Callable[..., Any], options: JobOptions, arguments: Mapping[str, Any]) -> Any:
    executor_input = read_executor_input()
    inputs, outputs = executor_input.get("inputs", {}), executor_input["outputs"]
    # KFP 2.17 gives each step retry another URI for its log: it would be another job.
    outputs.get("artifacts", {}).pop("executor-logs", None)
    patch = read_task_config(inputs.get("parameterValues", {}).get(_get_task_config_name(function)))
    files = open_function_files(options.storage, executor_input, arguments, patch)
    directories = {CHECKPOINT_VARIABLE: files.checkpoint_dir}
    for variable, group, title in (
        (DATASET_VARIABLE, inputs.get("artifacts", {}), "system.Dataset"),
        (OUTPUT_VARIABLE, outputs.get("artifacts", {}), "system.Model"),
    ):
        path = _get_artifact_path(function, group, title, arguments, files.paths)
        if path:
            directories[variable] = path
    command = [
        *("python", "-m", "kfp_mindspore.podside.functions"),
        *("--source", _escape(Path(function.__globals__["__file__"]).read_text())),
        *("--function", function.__name__),
        *("--executor-input", _escape(json.dumps(files.executor_input, sort_keys=True))),
        *(("--paths", _escape(json.dumps(files.paths, sort_keys=True))) if files.paths else ()),
    ]
    with files.explain_failures():
        name = launch_job(
            files.root,
            [*files.wrapper, *command],
            options,
            namespace=get_namespace() or "default",
            env=directories,
            has_step_image=True,
            pod=patch.merge(files.patch),
        )
    output = files.read_output()
    if output is None:
        raise ProcessFailedError(f"job {name}: succeeded, but worker 0 wrote no outputs")
    return copy_outputs(function, output, arguments)


def _get_task_config_name(function: Callable[..., Any]) -> str:
    annotations = inspect.signature(function).parameters.items()
    return next((name for name, entry in annotations if is_task_config(entry.annotation)), PARAMETER)


def _escape(text: str) -> str:
    # Kubernetes expands `$(NAME)` in a container's arguments, and `$$` to a dollar sign.
    return text.replace("$", "$$")


def _get_artifact_path(
    function: Callable[..., Any],
    group: Mapping[str, Any],
    title: str,
    arguments: Mapping[str, Any],
    paths: Mapping[str, str],
) -> str:
    """Return the path of the first artifact of a type, in the function's parameter order."""
    for name in inspect.signature(function).parameters:
        artifacts = group.get(name, {}).get("artifacts", [])
        artifact = arguments.get(name)
        if len(artifacts) == 1 and artifacts[0].get("type", {}).get("schemaTitle") == title and artifact is not None:
            if artifacts[0]["uri"] in paths:
                return paths[artifacts[0]["uri"]]
            # An InputPath or OutputPath parameter's argument is a path.
            return str(Path(artifact if isinstance(artifact, str) else artifact.path).absolute())
    return ""


def copy_outputs(function: Callable[..., Any], output: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Copy worker 0's outputs to the step's artifacts and return the function's return value.

    Args:
        function: The user's function.
        output: Worker 0's KFP ExecutorOutput.
        arguments: The step's arguments; output artifacts are updated in place.
    """
    parameters = dict(output.get("parameterValues", {}))
    annotation = inspect.signature(function).return_annotation
    annotations = getattr(annotation, "__annotations__", {}) if hasattr(annotation, "_fields") else {}
    for name, entry in output.get("artifacts", {}).items():
        described = entry["artifacts"][0]
        artifact = arguments.get(name)
        if artifact is None or isinstance(artifact, str):
            kind = annotations.get(name, annotation)
            if isinstance(kind, type) and name not in arguments:
                parameters[name] = kind(described["name"], described["uri"], described["metadata"])
            continue
        artifact.name, artifact.uri, artifact.metadata = described["name"], described["uri"], described["metadata"]
        if "custom_path" in described:
            artifact.custom_path = described["custom_path"]
    if hasattr(annotation, "_fields"):
        return tuple(parameters[field] for field in annotation._fields)
    return parameters.get("Output")
