"""A pipeline task's MSJob options: read, merge and validate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.build import JobChanges, JobOptions
from kfp_mindspore.options import check_values, merge_values
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.launch.options import format_task_options, parse_task_options, refer_to_input

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from typing_extensions import Unpack


def get_options(task: PipelineTask) -> dict[str, Any]:
    """Return the options set on a task, by field of `JobOptions`.

    Raises:
        UserError: The task has no container, such as a nested pipeline.
    """
    container = task.container_spec
    if container is None:
        raise UserError(f"{task.name}: has no MSJob", hint="Use the task of train_msjob or of an msjob_component.")
    return parse_task_options((container.env or {}).get(JOB_OPTIONS_VARIABLE, ""))


def update_options(
    task: PipelineTask, setter: str, names: Mapping[str, str] | None = None, **changes: Unpack[JobChanges]
) -> PipelineTask:
    """Merge changes into a task's options.

    Args:
        task: Task with an MSJob.
        setter: Setter name for messages.
        names: Its argument by field, where the names differ.
        **changes: `JobOptions` fields; None leaves one unchanged.

    Returns:
        The task.

    Raises:
        UserError: A key is a pipeline parameter or a task's output.
        ValidationError: A value is invalid; the message names the argument.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    check_values(JobOptions, given, subject=setter, names=names, is_unknown=is_channel)
    options = merge_values(get_options(task), {name: _refer(task, setter, value) for name, value in given.items()})
    task.set_env_variable(JOB_OPTIONS_VARIABLE, format_task_options(options))
    return task


def _refer(task: PipelineTask, setter: str, value: Any) -> Any:
    """Replace pipeline channels by references to task inputs, which the step resolves."""
    from kfp.dsl.pipeline_channel import PipelineChannel, extract_pipeline_channels_from_string

    if isinstance(value, Mapping):
        for key in value:
            if is_channel(key):
                raise UserError(f"{setter}: must be a constant, got {key}")
        return {key: _refer(task, setter, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_refer(task, setter, entry) for entry in value]
    if not is_channel(value):
        return value
    channels = [value] if isinstance(value, PipelineChannel) else extract_pipeline_channels_from_string(value)
    task.register_pipeline_channels(channels)
    text = str(value)
    for channel in channels:
        # An input that the component does not declare, as KFP's own setters add for resources.
        name = f"msjob-option--{channel.full_name}"
        task.inputs[name] = channel
        text = text.replace(channel.pattern, refer_to_input(name))
        if channel.task is not None:
            task.after(channel.task)
    return text


def check_count(setter: str, field: str, value: Any, minimum: int) -> None:
    """Check an integer.

    Raises:
        ValidationError: The value is not an integer or below the minimum.
    """
    if value is None or is_channel(value):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValidationError([f"{field}: must be an integer ≥ {minimum}, got {value!r}"], subject=setter)


def check_text(setter: str, field: str, value: Any, *, may_be_empty: bool = False) -> None:
    """Check a string.

    Raises:
        ValidationError: The value is not a string, or empty where it must not be.
    """
    if not is_channel(value) and (not isinstance(value, str) or not (value or may_be_empty)):
        raise ValidationError([f"{field}: must be a string, got {value!r}"], subject=setter)


def is_channel(value: Any) -> bool:
    """Return whether a value is, or contains as text, a pipeline parameter or a task's output."""
    from kfp.dsl.pipeline_channel import PipelineChannel

    return isinstance(value, PipelineChannel) or (isinstance(value, str) and "{{channel:" in value)
