"""Setters for a task's MSJob policies: deadline, restart, success and clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.dsl.task import update_options

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask


def set_run_policy(
    task: PipelineTask,
    *,
    backoff_limit: int | None = None,
    active_deadline_seconds: int | None = None,
    start_timeout_seconds: int | None = None,
    ttl_seconds_after_finished: int | None = None,
    clean_pod_policy: str | None = None,
    delete_after_done: bool | None = None,
) -> PipelineTask:
    """Set the task MSJob's run policy; None leaves a field unchanged.

    Args:
        task: train_msjob or msjob_component task.
        backoff_limit: Restarts after which the job fails, ≥ 0.
        active_deadline_seconds: Seconds after which the job is terminated and fails, ≥ 1.
        start_timeout_seconds: Seconds for which the job's pods may be unable to start, ≥ 1. Default: 600 if no cluster
            node fits a pod or no operator reconciles the job, 60 for an image that cannot be pulled, a missing Secret
            or a refused pod, and no limit while other pods use the resources.
        ttl_seconds_after_finished: Seconds after which a finished job is deleted, ≥ 0.
        clean_pod_policy: Pods or processes deleted when the job finishes: `Running`, `All` or `None`.
        delete_after_done: Whether the step deletes its finished job, and with it its pods' logs.

    Returns:
        The task.

    Raises:
        ValidationError: A value is out of range; the message names it.
    """
    return update_options(
        task,
        "set_run_policy",
        backoff_limit=backoff_limit,
        active_deadline_seconds=active_deadline_seconds,
        start_timeout_seconds=start_timeout_seconds,
        ttl_seconds_after_finished=ttl_seconds_after_finished,
        clean_pod_policy=clean_pod_policy,
        delete_after_done=delete_after_done,
    )


def set_restart_policy(task: PipelineTask, policy: str) -> PipelineTask:
    """Set the task MSJob's restart policy.

    Args:
        task: train_msjob or msjob_component task.
        policy: Terminations that restart the job. `ExitCode`: those with a retryable exit code, such as 143;
            `OnFailure`: those with any exit code but 0; `Never`; `Always`.

    Returns:
        The task.

    Raises:
        ValidationError: The policy is invalid.
    """
    return update_options(task, "set_restart_policy", {"restart_policy": "policy"}, restart_policy=policy)


def set_success_policy(task: PipelineTask, policy: str) -> PipelineTask:
    """Set the task MSJob's success policy.

    Args:
        task: train_msjob or msjob_component task.
        policy: Workers whose success is the job's. `Default`: worker 0; `AllWorkers`.

    Returns:
        The task.

    Raises:
        ValidationError: The policy is invalid.
    """
    return update_options(task, "set_success_policy", {"success_policy": "policy"}, success_policy=policy)
