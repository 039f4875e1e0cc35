"""Setters for a task's MSJob workers: count, environment, resources and pod fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.dsl.task import check_count, check_text, get_options, is_channel, update_options
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.build import list_pod_metadata_errors

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask


def set_worker_count(task: PipelineTask, count: int) -> PipelineTask:
    """Set the worker count; takes precedence over the component's argument.

    Args:
        task: train_msjob or msjob_component task.
        count: Worker count, ≥ 1. With more than one, a scheduler is added.

    Returns:
        The task.

    Raises:
        ValidationError: The count is below 1.
    """
    return update_options(task, "set_worker_count", {"workers": "count"}, workers=count)


def add_worker_env(task: PipelineTask, name: str, value: str) -> PipelineTask:
    """Set an environment variable on each worker; `task.set_env_variable` sets one on the launcher and each worker.

    Args:
        task: train_msjob or msjob_component task.
        name: Variable name; the job sets the topology's `MS_…` variables.
        value: Variable value, plain text in the compiled pipeline: must not be a secret.

    Returns:
        The task.

    Raises:
        ValidationError: The name is empty or contains `=`, or the value is not a string.
    """
    check_text("add_worker_env", "name", name)
    if "=" in name:
        raise ValidationError([f"name: must not contain =, got {name!r}"], subject="add_worker_env")
    check_text("add_worker_env", "value", value, may_be_empty=True)
    return update_options(task, "add_worker_env", env={name: value})


def set_worker_resources(
    task: PipelineTask,
    *,
    cpu: str | None = None,
    memory: str | None = None,
    accelerator: str | None = None,
    accelerator_count: int = 1,
) -> PipelineTask:
    """Set each worker's resources; None leaves one unchanged, and with it what `task.set_cpu_limit` etc. have set.

    The local backend ignores resources with a warning.

    Args:
        task: train_msjob or msjob_component task.
        cpu: CPU request and limit as a Kubernetes quantity, such as `2` or `500m`.
        memory: Memory request and limit as a Kubernetes quantity, such as `4Gi`.
        accelerator: An accelerator's resource name, such as `huawei.com/Ascend910`.
        accelerator_count: Accelerators per worker, ≥ 1.

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
    quantities: dict[str, Any] = {field: value for field, value in amounts.items() if value is not None}
    if accelerator is not None:
        check_text(name, "accelerator", accelerator)
        check_count(name, "accelerator_count", accelerator_count, 1)
        quantities[accelerator] = accelerator_count if is_channel(accelerator_count) else str(accelerator_count)
    current = get_options(task).get("resources", {})
    return update_options(
        task,
        name,
        resources={kind: {**current.get(kind, {}), **quantities} for kind in ("limits", "requests")},
    )


def set_worker_pod(
    task: PipelineTask,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    image_pull_secrets: Sequence[str] | None = None,
    service_account: str | None = None,
    security_context: Mapping[str, Any] | None = None,
    empty_dirs: Mapping[str, str] | None = None,
) -> PipelineTask:
    """Set worker pod fields that KFP does not hand to a launcher; None leaves a field unchanged.

    Resources, environment variables, volumes, tolerations, node selectors and affinity are set by KFP's and
    kfp-kubernetes' own setters.

    Args:
        task: train_msjob or msjob_component task.
        labels: Pod labels. Such as {"fault-scheduling": "force"}, merged with earlier ones.
        annotations: Pod annotations. Such as {"huawei.com/vnpu-mode": "hami-core"}, merged with earlier ones.
        image_pull_secrets: Registry secret names for the job's pods.
        service_account: Service account for the job's pods.
        security_context: PodSecurityContext for the job's pods, such as {"runAsUser": 1000, "fsGroup": 1000}.
        empty_dirs: Size limits for empty directories in the workers' pods by path, such as 8Gi for `/dev/shm`. That one
            is in memory; an empty text is no limit. Merged with earlier ones; the local backend uses this machine's.

    Returns:
        The task.

    Raises:
        ValidationError: A name is empty, reserved or not a string, or a path is not absolute.
    """
    name = "set_worker_pod"
    for field, entries in (("labels", labels), ("annotations", annotations)):
        for key, value in (entries or {}).items():
            check_text(name, f"{field}.{key}", value)
    if errors := list_pod_metadata_errors(labels or {}, annotations or {}, prefix=""):
        raise ValidationError(errors, subject=name)
    for secret in image_pull_secrets or ():
        check_text(name, "image_pull_secrets", secret)
    if service_account is not None:
        check_text(name, "service_account", service_account)
    for path in empty_dirs or ():
        if not path.startswith("/"):
            raise ValidationError([f"empty_dirs: must have absolute paths, got {path!r}"], subject=name)
    return update_options(
        task,
        name,
        pod_labels=labels,
        pod_annotations=annotations,
        image_pull_secrets=list(image_pull_secrets) if image_pull_secrets else None,
        service_account=service_account,
        security_context=security_context,
        empty_dirs=empty_dirs,
    )
