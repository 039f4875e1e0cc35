"""Setters for labels and annotations on a task's MSJob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.dsl.task import check_text, update_options

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask


def add_job_label(task: PipelineTask, key: str, value: str) -> PipelineTask:
    """Add a label to the task's MSJob.

    Args:
        task: train_msjob or msjob_component task.
        key: Label key, such as `team`.
        value: Label value.

    Returns:
        The task.

    Raises:
        ValidationError: The key or value is empty or not a string.
    """
    check_text("add_job_label", "key", key)
    check_text("add_job_label", "value", value)
    return update_options(task, "add_job_label", labels={key: value})


def add_job_annotation(task: PipelineTask, key: str, value: str) -> PipelineTask:
    """Add an annotation to the task's MSJob.

    Args:
        task: train_msjob or msjob_component task.
        key: Annotation key.
        value: Annotation value.

    Returns:
        The task.

    Raises:
        ValidationError: The key or value is empty or not a string.
    """
    check_text("add_job_annotation", "key", key)
    check_text("add_job_annotation", "value", value)
    return update_options(task, "add_job_annotation", annotations={key: value})
