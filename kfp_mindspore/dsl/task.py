"""Options of a pipeline task's MSJob: read, merge and validate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.options import JobOptions

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask


def get_options(task: PipelineTask) -> JobOptions:
    """Return the options set on a task.

    Raises:
        UserError: The task has no container, such as a nested pipeline.
    """
    container = task.container_spec
    if container is None:
        raise UserError(f"{task.name}: has no MSJob", hint="Use the task of train_msjob or of an msjob_component.")
    return JobOptions.from_json((container.env or {}).get(JOB_OPTIONS_VARIABLE, ""))


def update_options(task: PipelineTask, setter: str, **changes: Any) -> PipelineTask:
    """Merge changes into a task's options.

    Args:
        task: Task with an MSJob.
        setter: Name of the setter for messages.
        **changes: Fields of `JobOptions`.

    Returns:
        The task.

    Raises:
        UserError: A value is the output of a task or a pipeline parameter.
    """
    for name, value in changes.items():
        for entry in _list_leaves(value):
            if _is_channel(entry):
                raise UserError(
                    f"{setter}: {name}: must be a constant, got {entry}",
                    hint="Use a parameter of the component for values that vary between runs.",
                )
    options = get_options(task).merge(**changes)
    task.set_env_variable(JOB_OPTIONS_VARIABLE, options.to_json())
    return task


def check_count(setter: str, field: str, value: Any, minimum: int) -> None:
    """Check an integer.

    Raises:
        ValidationError: The value is not an integer or below the minimum.
    """
    if value is None or _is_channel(value):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValidationError([f"{field}: must be an integer ≥ {minimum}, got {value!r}"], subject=setter)


def check_choice(setter: str, field: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check a value against its choices.

    Raises:
        ValidationError: The value is none of them.
    """
    if value is not None and not _is_channel(value) and value not in choices:
        raise ValidationError([f"{field}: must be one of {', '.join(choices)}, got {value!r}"], subject=setter)


def check_text(setter: str, field: str, value: Any) -> None:
    """Check a non-empty string.

    Raises:
        ValidationError: The value is empty or not a string.
    """
    if not _is_channel(value) and (not isinstance(value, str) or not value):
        raise ValidationError([f"{field}: must be a string, got {value!r}"], subject=setter)


def _list_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _list_leaves(entry)
    else:
        yield value


def _is_channel(value: Any) -> bool:
    from kfp.dsl.pipeline_channel import PipelineChannel

    return isinstance(value, PipelineChannel) or (isinstance(value, str) and "{{channel:" in value)
