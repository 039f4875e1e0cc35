"""Hooks around a local run's tasks: kfp.local 2.17 has no callbacks for task starts, ends and cache hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kfp_mindspore.canonical import canonicalize

Execute = Callable[[], tuple[dict[str, Any], Any]]


def install(on_task: Callable[[Any, Any, Execute], tuple[dict[str, Any], Any]], on_run: Callable[[Any], None]) -> None:
    """Wrap the two functions through which kfp.local executes each task.

    Args:
        on_task: Called as `on_task(task_spec, io_store, execute)` for each task instead of `execute`, which returns
            the task's outputs and the `kfp.local.status.Status`, from the cache or by running it.
        on_run: Called with the task's arguments before it runs; not called on a cache hit.
    """
    from kfp.local import task_dispatcher
    from kfp.local.orchestrator import task_executor

    execute_task: Callable[..., Any] = task_executor.execute_single_task
    run_task: Callable[..., Any] = task_dispatcher.run_single_task_implementation

    # Any, as are the keywords below: KFP's functions get them unchanged.
    def execute(*args: Any, **kwargs: Any) -> Any:
        return on_task(kwargs["task_spec"], kwargs["io_store"], lambda: execute_task(*args, **kwargs))

    def run(*args: Any, **kwargs: Any) -> Any:
        on_run(kwargs["arguments"])
        return run_task(*args, **kwargs)

    task_executor.execute_single_task = execute
    task_dispatcher.run_single_task_implementation = run


def install_cache(
    on_key: Callable[[Any], None], is_valid: Callable[[str], bool], on_store: Callable[[str, Callable[[], None]], None]
) -> None:
    """Wrap kfp.local's cache, whose key lacks file contents; entries with a user's own key are excepted.

    Args:
        on_key: Called with the command and a task's arguments before the entry is looked up.
        is_valid: Called with a key; returns whether the entry may be used.
        on_store: Called as `on_store(key, put)` instead of `put`, which writes the entry.
    """
    from kfp.local.cache import LocalCache

    compute_key, get, put = LocalCache.compute_key, LocalCache.get, LocalCache.put
    custom: set[str] = set()

    # Any: the keywords are KFP's own.
    def compute(self: Any, **arguments: Any) -> str:
        # 3 and 3.0 would have two entries.
        key = str(compute_key(self, **{**arguments, "arguments": canonicalize(arguments["arguments"])}))
        if arguments.get("custom_cache_key"):
            custom.add(key)
        on_key((arguments["full_command"], arguments["arguments"]))
        return key

    def look_up(self: Any, key: str) -> Any:
        return get(self, key) if key in custom or is_valid(key) else None

    def store(self: Any, key: str, outputs: Any) -> None:
        if key in custom:
            put(self, key, outputs)
        else:
            on_store(key, lambda: put(self, key, outputs))

    LocalCache.compute_key, LocalCache.get, LocalCache.put = compute, look_up, store


def make_arguments(task: Any, store: Any) -> Mapping[str, Any]:
    """Return the arguments for a task whose outputs came from the cache.

    Args:
        task: The PipelineTaskSpec.
        store: The run's `kfp.local.io.IOStore`.
    """
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    arguments: Mapping[str, Any] = OrchestratorUtils.make_task_arguments(task_inputs_spec=task.inputs, io_store=store)
    return arguments
