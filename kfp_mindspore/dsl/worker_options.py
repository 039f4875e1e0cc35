"""Setters for the workers of a task's MSJob: number, environment and resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.dsl.task import check_count, check_text, get_options, update_options
from kfp_mindspore.errors import ValidationError

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask


def set_worker_count(task: PipelineTask, count: int) -> PipelineTask:
    """Set the number of workers; takes precedence over the component's argument.

    Args:
        task: Task of train_msjob or of an msjob_component.
        count: Number of workers, ≥ 1; with more than one, a scheduler is added.

    Returns:
        The task.

    Raises:
        ValidationError: The count is below 1.
    """
    check_count("set_worker_count", "count", count, 1)
    return update_options(task, "set_worker_count", workers=count)


def add_worker_env(task: PipelineTask, name: str, value: str) -> PipelineTask:
    """Set an environment variable of each worker (`task.set_env_variable` sets one of the launcher).

    Args:
        task: Task of train_msjob or of an msjob_component.
        name: Name of the variable; `MS_…` variables of the topology are set by the job.
        value: Value of the variable, plain text in the compiled pipeline: must not be a secret.

    Returns:
        The task.

    Raises:
        ValidationError: The name is empty or contains `=`, or the value is not a string.
    """
    check_text("add_worker_env", "name", name)
    if "=" in name or not isinstance(value, str):
        error = f"name: must not contain =, got {name!r}" if "=" in name else f"value: must be a string, got {value!r}"
        raise ValidationError([error], subject="add_worker_env")
    return update_options(task, "add_worker_env", env={name: value})


def set_worker_resources(
    task: PipelineTask,
    *,
    cpu: str | None = None,
    memory: str | None = None,
    accelerator: str | None = None,
    accelerator_count: int = 1,
) -> PipelineTask:
    """Set the resources of each worker; None leaves one unchanged. The local backend ignores them with a warning.

    Args:
        task: Task of train_msjob or of an msjob_component.
        cpu: CPU request and limit as a Kubernetes quantity, such as `2` or `500m`.
        memory: Memory request and limit as a Kubernetes quantity, such as `4Gi`.
        accelerator: Resource name of an accelerator, such as `huawei.com/Ascend910`.
        accelerator_count: Number of accelerators per worker, ≥ 1.

    Returns:
        The task.

    Raises:
        ValidationError: A quantity is empty or a count is below 1.
    """
    name = "set_worker_resources"
    amounts = {"cpu": cpu, "memory": memory}
    for field, value in amounts.items():
        if value is not None:
            check_text(name, field, value)
    quantities = {field: value for field, value in amounts.items() if value is not None}
    if accelerator is not None:
        check_text(name, "accelerator", accelerator)
        check_count(name, "accelerator_count", accelerator_count, 1)
        quantities[accelerator] = str(accelerator_count)
    current = get_options(task).resources
    return update_options(
        task,
        name,
        resources={kind: {**current.get(kind, {}), **quantities} for kind in ("limits", "requests")},
    )
