"""The decorator that makes a Python function a training step of its own: `@msjob_component`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from kfp_mindspore.dsl.policy import CLEAN_POD_POLICIES, RESTART_POLICIES, SUCCESS_POLICIES
from kfp_mindspore.dsl.task import check_choice, check_count
from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import PLACEHOLDER_IMAGE
from kfp_mindspore.steps.options import JobOptions

if TYPE_CHECKING:
    from kfp.dsl.python_component import PythonComponent

_NAME = "msjob_component"


@overload
def msjob_component(function: Callable[..., Any]) -> PythonComponent: ...


@overload
def msjob_component(
    *,
    workers: int = ...,
    base_image: str = ...,
    additional_funcs: Sequence[Callable[..., Any]] = ...,
    env: Mapping[str, str] | None = ...,
    resources: Mapping[str, Mapping[str, str]] | None = ...,
    restart_policy: str = ...,
    success_policy: str = ...,
    clean_pod_policy: str = ...,
    backoff_limit: int = ...,
    active_deadline_seconds: int | None = ...,
    ttl_seconds_after_finished: int | None = ...,
) -> Callable[[Callable[..., Any]], PythonComponent]: ...


def msjob_component(
    function: Callable[..., Any] | None = None,
    *,
    workers: int = 1,
    base_image: str = PLACEHOLDER_IMAGE,
    additional_funcs: Sequence[Callable[..., Any]] = (),
    env: Mapping[str, str] | None = None,
    resources: Mapping[str, Mapping[str, str]] | None = None,
    restart_policy: str = "ExitCode",
    success_policy: str = "Default",
    clean_pod_policy: str = "Running",
    backoff_limit: int = 3,
    active_deadline_seconds: int | None = None,
    ttl_seconds_after_finished: int | None = None,
) -> PythonComponent | Callable[[Callable[..., Any]], PythonComponent]:
    """Turn a Python function into a component whose step runs the function in every worker of an MSJob.

    The function is written as for `@dsl.component`: its parameters are typed as KFP's are, it imports what it needs
    inside, and its source is all that is shipped. The step's own process only submits the job, shows its logs and waits
    for it. Worker 0's outputs are the step's outputs; the other workers get scratch paths for theirs. Each worker has
    MindSpore's topology in `MS_*`. The first input of type Dataset and the first output of type Model also stand in
    KFP_MINDSPORE_DATASET_DIR and KFP_MINDSPORE_OUTPUT_DIR, so `kfp_mindspore.training.fit` needs no paths, and
    KFP_MINDSPORE_CHECKPOINT_DIR outlives a restart of the job.

    Args:
        function: The function, when the decorator is used bare.
        workers: Number of workers; with more than one, a scheduler is started beside them.
        base_image: Image of the step and of the workers. Everything the function imports must be in it: the step
            installs nothing.
        additional_funcs: Further functions that the function calls, shipped with it.
        env: Environment variables of the workers.
        resources: Kubernetes resource requirements of each worker: {"requests": {…}, "limits": {…}}.
        restart_policy: `ExitCode`: restart after an exit code that promises to pass (130, 137, 138, 143), fail at once
            after another, such as an exception's; `OnFailure`: restart after any but 0; `Never`; `Always`.
        success_policy: `AllWorkers`, or `Default` for worker 0 alone.
        clean_pod_policy: Which processes or pods are removed at the end: `Running`, `All` or `None`.
        backoff_limit: Number of restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is ended and fails; None for no limit.
        ttl_seconds_after_finished: Seconds after its end when the job is deleted; None keeps it.

    Returns:
        A component, or a decorator that makes one. `.python_func` is the function itself.

    Raises:
        ValidationError: An argument is out of range; the message names it.
        UserError: The function is no plain function, or its source cannot be found.

    Example:
        >>> @msjob_component(workers=2)
        ... def train(dataset: Input[Dataset], model: Output[Model], epochs: int = 5) -> float:
        ...     from kfp_mindspore.training import fit
        ...     ...
        ...     return result.metrics["accuracy"]
    """
    check_count(_NAME, "workers", workers, 1)
    check_count(_NAME, "backoff_limit", backoff_limit, 0)
    check_count(_NAME, "active_deadline_seconds", active_deadline_seconds, 1)
    check_count(_NAME, "ttl_seconds_after_finished", ttl_seconds_after_finished, 0)
    check_choice(_NAME, "restart_policy", restart_policy, RESTART_POLICIES)
    check_choice(_NAME, "success_policy", success_policy, SUCCESS_POLICIES)
    check_choice(_NAME, "clean_pod_policy", clean_pod_policy, CLEAN_POD_POLICIES)
    options = JobOptions(
        workers=workers,
        backoff_limit=backoff_limit,
        active_deadline_seconds=active_deadline_seconds,
        ttl_seconds_after_finished=ttl_seconds_after_finished,
        clean_pod_policy=clean_pod_policy,
        restart_policy=restart_policy,
        success_policy=success_policy,
        resources=resources or {},
        env=env or {},
    )
    build = functools.partial(
        _build_component, options=options, base_image=base_image, additional_funcs=additional_funcs
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

    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function) or function.__name__ == "<lambda>":
        raise UserError(f"{_NAME}: expected a plain function, got {function!r}")
    texts = [name for name, annotation in function.__annotations__.items() if isinstance(annotation, str)]
    if texts:
        raise UserError(
            f"{_NAME}: {function.__name__}: the type of {texts[0]!r} is a text, {function.__annotations__[texts[0]]!r}",
            hint="KFP needs the types themselves: take out `from __future__ import annotations`.",
        )
    try:
        component = dsl.component(
            function, base_image=base_image, install_kfp_package=False, additional_funcs=list(additional_funcs) or None
        )
    except OSError as error:
        raise UserError(
            f"{_NAME}: the source of {function.__name__} cannot be found ({error})",
            hint="Define it in a file or a notebook cell.",
        ) from error
    container = component.component_spec.implementation.container
    # The last part of a lightweight component's command is its source. What follows the function there makes it a
    # launcher in the step's process; in a worker the same source is loaded and the function under the wrapper called.
    *command, source = container.command
    changed = [*command, source.rstrip() + _FOOTER.format(name=function.__name__, options=options.to_json())]
    component.component_spec.implementation.container = dataclasses.replace(container, command=changed)
    return component


_FOOTER = """


from kfp_mindspore.steps.function import launch_function

{name} = launch_function({name}, {options!r})
"""
