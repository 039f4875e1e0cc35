"""Setter for a task's MSJob storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfp_mindspore.dsl.task import check_text, is_channel, update_options
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.steps.handover.storage_spec import parse_storage

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask


def set_storage(task: PipelineTask, storage: str) -> PipelineTask:
    """Set how data are handed to the task's MSJob pods; takes precedence over the component's argument.

    Args:
        task: train_msjob or msjob_component task.
        storage: How data reach the pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.

    Returns:
        The task.

    Raises:
        ValidationError: The storage has another form.
    """
    check_storage("set_storage", storage)
    return update_options(task, "set_storage", storage=storage)


def check_storage(setter: str, storage: Any) -> None:
    """Check a storage's form.

    Raises:
        ValidationError: It has another form.
    """
    check_text(setter, "storage", storage)
    if is_channel(storage):
        return
    try:
        parse_storage(storage)
    except ValidationError as error:
        raise ValidationError(error.errors, subject=setter) from None
