"""Setter for the image of a task, or of all steps of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kfp_mindspore.dsl.task import check_text, is_channel
from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

Target = TypeVar("Target")

_HINT = "Expected a task, a function with @dsl.pipeline, or a compiled pipeline as a dict."


def set_image(target: Target, image: str) -> Target:
    """Set the image of a task, or of all steps of a pipeline that have none.

    A job's pods have their step's image, unless the parameter `image` names another. In pipelines, images other than
    the placeholder of this package's components stay.

    Args:
        target: A task of any component; a function with `@dsl.pipeline`, before it is compiled; or a compiled pipeline.
        image: Image with kfp-mindspore installed, preferably by digest. For a task also a pipeline parameter.

    Returns:
        The target; of a compiled pipeline a copy.

    Raises:
        ValidationError: The image is empty or not a string.
        UserError: The image contains white space, or the target is something else.

    Example:
        >>> set_image(train_msjob(command=["python", "-m", "train"]), "registry/steps@sha256:…")
    """
    check_text("set_image", "image", image)
    changed: Target = _apply(target, image)
    return changed


def _apply(target: Any, image: str) -> Any:
    from kfp.dsl import PipelineTask

    from kfp_mindspore.runs.compiled import image as compiled
    from kfp_mindspore.runs.compiled.sources import is_pipeline

    if isinstance(target, PipelineTask):
        return _set_task_image(target, image)
    if is_pipeline(target):
        from google.protobuf import json_format

        spec = target.pipeline_spec
        changed = compiled.set_image(json_format.MessageToDict(spec), image)
        spec.Clear()
        json_format.ParseDict(changed, spec)
        return target
    if isinstance(target, dict):
        return compiled.set_image(target, image)
    raise UserError(f"set_image: target: got {type(target).__name__}", hint=_HINT)


def _set_task_image(task: PipelineTask, image: str) -> PipelineTask:
    if task.container_spec is None:
        raise UserError(f"set_image: {task.name}: is a pipeline", hint="Set the image of the whole pipeline.")
    task.set_container_image(image)
    if not is_channel(image):
        # For the pods of a job of `retry --image` and of compiled pipelines alike.
        task.set_env_variable(IMAGE_VARIABLE, image)
    return task
