"""Hooks around the tasks of a local run: kfp.local 2.17 has no callbacks for starts, ends and cache hits of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Execute = Callable[[], tuple[dict[str, Any], Any]]


def install(on_task: Callable[[Any, Any, Execute], tuple[dict[str, Any], Any]], on_run: Callable[[Any], None]) -> None:
    """Wrap the two functions through which kfp.local executes each task.

    Args:
        on_task: Called as `on_task(task_spec, io_store, execute)` for each task instead of `execute`, which returns
            the task's outputs and its `kfp.local.status.Status`, from the cache or by running it.
        on_run: Called with the task's arguments before it runs; not called on a cache hit.
    """
    from kfp.local import task_dispatcher
    from kfp.local.orchestrator import task_executor

    execute_task: Callable[..., Any] = task_executor.execute_single_task
    run_task: Callable[..., Any] = task_dispatcher.run_single_task_implementation

    def execute(*args: Any, **kwargs: Any) -> Any:
        return on_task(kwargs["task_spec"], kwargs["io_store"], lambda: execute_task(*args, **kwargs))

    def run(*args: Any, **kwargs: Any) -> Any:
        on_run(kwargs["arguments"])
        return run_task(*args, **kwargs)

    task_executor.execute_single_task = execute
    task_dispatcher.run_single_task_implementation = run


def make_arguments(task: Any, store: Any) -> Mapping[str, Any]:
    """Return the arguments of a task whose outputs came from the cache.

    Args:
        task: Its PipelineTaskSpec.
        store: The run's `kfp.local.io.IOStore`.
    """
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    arguments: Mapping[str, Any] = OrchestratorUtils.make_task_arguments(task_inputs_spec=task.inputs, io_store=store)
    return arguments
