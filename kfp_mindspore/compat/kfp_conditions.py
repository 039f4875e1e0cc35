"""Mends kfp.local's conditions on named outputs, so that a pipeline's gate decides the same on one machine.

kfp 2.17 compiles `dsl.If(task.outputs["accuracy"] >= 0.9)` to a reference `pipelinechannel--task-accuracy`, and its
local runner finds only references that end in `-Output`: for any other name it warns, takes the condition as false
and calls the run a success.
"""

from __future__ import annotations

from typing import Any

_PREFIX = "pipelinechannel--"

# References that no condition of this process could resolve: kfp.local took those conditions as false.
unresolved: list[str] = []


def install() -> None:
    """Let kfp.local resolve a condition's named outputs; calling it again changes nothing."""
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    original = ConditionEvaluator._resolve_pipeline_channel
    if getattr(original, "finds_named_outputs", False):
        return

    def resolve(channel_ref: str, io_store: Any) -> Any:
        value = find_output(channel_ref, io_store)
        value = original(channel_ref, io_store) if value is None else value
        if value is None:
            unresolved.append(channel_ref.removeprefix(_PREFIX))
        return value

    resolve.finds_named_outputs = True  # type: ignore[attr-defined]
    ConditionEvaluator._resolve_pipeline_channel = staticmethod(resolve)


def find_output(reference: str, outputs: Any) -> Any:
    """Find the output of an earlier task that a condition refers to.

    Args:
        reference: `pipelinechannel--TASK-OUTPUT`; both names may contain hyphens.
        outputs: The run's `kfp.local.io.IOStore`.

    Returns:
        The value, or None when the reference is to no task's output, such as to a parameter of the pipeline.
    """
    name = reference.removeprefix(_PREFIX)
    for index in (place for place, character in enumerate(name) if character == "-"):
        try:
            return outputs.get_task_output(name[:index], name[index + 1 :])
        except ValueError:
            continue
    return None
