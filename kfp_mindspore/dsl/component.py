"""The decorator `@msjob_component`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from kfp_mindspore.dsl.storage import check_storage
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.build import JobChanges, JobOptions
from kfp_mindspore.options import check_values, to_json
from kfp_mindspore.settings import IMAGE_VARIABLE, PLACEHOLDER_IMAGE
from kfp_mindspore.steps.handover.task_config import PARAMETER

if TYPE_CHECKING:
    from kfp.dsl.python_component import PythonComponent
    from typing_extensions import Unpack

_NAME = "msjob_component"
_TASK_CONFIG = "TaskConfig"


@overload
def msjob_component(function: Callable[..., Any]) -> PythonComponent: ...


@overload
def msjob_component(
    *,
    base_image: str = ...,
    additional_funcs: Sequence[Callable[..., Any]] = ...,
    **options: Unpack[JobChanges],
) -> Callable[[Callable[..., Any]], PythonComponent]: ...


def msjob_component(
    function: Callable[..., Any] | None = None,
    *,
    base_image: str = PLACEHOLDER_IMAGE,
    additional_funcs: Sequence[Callable[..., Any]] = (),
    **options: Unpack[JobChanges],
) -> PythonComponent | Callable[[Callable[..., Any]], PythonComponent]:
    """Turn a Python function into a component that runs the function in each MSJob worker.

    The rules of `@dsl.component` apply: parameters have KFP's types, imports are inside the function, and only its
    source is in the component. The step submits the job, prints its log and waits until it has finished. Worker 0
    writes the step's outputs; other workers write to scratch paths. `MS_*` variables describe the topology to each
    worker. `kfp_mindspore.training.fit` reads the first Dataset input (KFP_MINDSPORE_DATASET_DIR), writes the first
    Model output (KFP_MINDSPORE_OUTPUT_DIR) and resumes from KFP_MINDSPORE_CHECKPOINT_DIR, which persists across job
    restarts.

    Args:
        function: The function, if the decorator has no arguments.
        base_image: Image for the step and the workers, with the packages that the function imports: the step installs
            none.
        additional_funcs: Functions called by the function; their source is added to the component.
        **options: Fields of `JobOptions`, such as `workers`, `env`, `resources`, `restart_policy`, `success_policy`,
            `backoff_limit`, `active_deadline_seconds` and `storage`; `base_image` is the workers' image, too.

    Returns:
        A component, or a decorator that returns one. `.python_func` is the function.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        UserError: The argument is not a plain function, or its source is not available.

    Example:
        >>> @msjob_component(workers=2)
        ... def train(dataset: Input[Dataset], model: Output[Model], epochs: int = 5) -> float:
        ...     from kfp_mindspore.training import fit
        ...     ...
        ...     return result.metrics["accuracy"]
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "image" in given:
        raise ValidationError(["image: must be absent; base_image is the workers' image, too"], subject=_NAME)
    check_values(JobOptions, given, subject=_NAME)
    check_storage(_NAME, given.get("storage", JobOptions.storage))
    build = functools.partial(
        _build_component, options=JobOptions(**given), base_image=base_image, additional_funcs=additional_funcs
    )
    return build if function is None else build(function)


def _build_component(
    function: Callable[..., Any],
    *,
    options: JobOptions,
    base_image: str,
    additional_funcs: Sequence[Callable[..., Any]],
) -> PythonComponent:
    from kfp import dsl
    from kfp.dsl import structures

    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function) or function.__name__ == "<lambda>":
        raise UserError(f"{_NAME}: expected a plain function, got {function!r}")
    texts = [name for name, annotation in function.__annotations__.items() if isinstance(annotation, str)]
    if texts:
        raise UserError(
            f"{_NAME}: {function.__name__}: the annotation of {texts[0]!r} is a string: "
            f"{function.__annotations__[texts[0]]!r}",
            hint="KFP requires types: remove `from __future__ import annotations`.",
        )
    try:
        component = dsl.component(
            function,
            base_image=base_image,
            install_kfp_package=False,
            additional_funcs=list(additional_funcs) or None,
            task_config_passthroughs=[
                *(field for field in dsl.TaskConfigField if field != dsl.TaskConfigField.ENV),
                # The launcher reads its own options from environment variables.
                dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
            ],
        )
    except OSError as error:
        raise UserError(
            f"{_NAME}: the source of {function.__name__} is not available ({error})",
            hint="Define it in a file or a notebook cell.",
        ) from error
    inputs = component.component_spec.inputs or {}
    if not any(entry.type == _TASK_CONFIG for entry in inputs.values()):
        description = "Filled in by Kubeflow Pipelines with what the pipeline sets on the task."
        entry = structures.InputSpec(_TASK_CONFIG, optional=True, description=description)
        component.component_spec.inputs = {**inputs, PARAMETER: entry}
    container = component.component_spec.implementation.container
    # The last argument of a lightweight component's command is the source. The footer replaces the function by its
    # launcher; a worker imports the same source and calls the wrapped function.
    *command, source = container.command
    changed = [*command, source.rstrip() + _FOOTER.format(name=function.__name__, options=to_json(options))]
    # The job pods' image, too; `set_image` adds the variable where it replaces the placeholder.
    env = None if base_image == PLACEHOLDER_IMAGE else {IMAGE_VARIABLE: base_image}
    component.component_spec.implementation.container = dataclasses.replace(container, command=changed, env=env)
    return component


_FOOTER = """


from kfp_mindspore.steps.launch.function import launch_function

{name} = launch_function({name}, {options!r})
"""
