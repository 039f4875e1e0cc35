"""Setters for a task's MSJob policies: deadline, restart, success and clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.dsl.task import check_choice, check_count, update_options

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

CLEAN_POD_POLICIES = ("Running", "All", "None")
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
SUCCESS_POLICIES = ("Default", "AllWorkers")


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
    name = "set_run_policy"
    check_count(name, "backoff_limit", backoff_limit, 0)
    check_count(name, "active_deadline_seconds", active_deadline_seconds, 1)
    check_count(name, "start_timeout_seconds", start_timeout_seconds, 1)
    check_count(name, "ttl_seconds_after_finished", ttl_seconds_after_finished, 0)
    check_choice(name, "clean_pod_policy", clean_pod_policy, CLEAN_POD_POLICIES)
    return update_options(
        task,
        name,
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
        policy: `OnFailure`, `Never`, `Always`, or `ExitCode`: restart after a retryable exit code only, such as 143.

    Returns:
        The task.

    Raises:
        ValidationError: The policy is invalid.
    """
    check_choice("set_restart_policy", "policy", policy, RESTART_POLICIES)
    return update_options(task, "set_restart_policy", restart_policy=policy)


def set_success_policy(task: PipelineTask, policy: str) -> PipelineTask:
    """Set the task MSJob's success policy.

    Args:
        task: train_msjob or msjob_component task.
        policy: `AllWorkers`, or `Default` for worker 0 only.

    Returns:
        The task.

    Raises:
        ValidationError: The policy is invalid.
    """
    check_choice("set_success_policy", "policy", policy, SUCCESS_POLICIES)
    return update_options(task, "set_success_policy", success_policy=policy)
