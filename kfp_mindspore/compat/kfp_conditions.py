"""Conditions on named outputs in kfp.local 2.17.

kfp 2.17 compiles `dsl.If(task.outputs["accuracy"] >= 0.9)` to a reference `pipelinechannel--task-accuracy`, but the
local runner resolves only references that end in `-Output`. For any other name it logs a warning, evaluates the
condition as false and reports the run as successful.
"""

from __future__ import annotations

from typing import Any

_PREFIX = "pipelinechannel--"

# References that had no value in this process: kfp.local evaluated their conditions as false.
unresolved: list[str] = []


def install() -> None:
    """Make kfp.local resolve named outputs in conditions; a second call has no effect."""
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    original = ConditionEvaluator._resolve_pipeline_channel
    if getattr(original, "resolves_named_outputs", False):
        return

    def resolve(channel_ref: str, io_store: Any) -> Any:
        value = get_task_output(channel_ref, io_store)
        value = original(channel_ref, io_store) if value is None else value
        if value is None:
            unresolved.append(channel_ref.removeprefix(_PREFIX))
        return value

    resolve.resolves_named_outputs = True  # type: ignore[attr-defined]
    ConditionEvaluator._resolve_pipeline_channel = staticmethod(resolve)


def get_task_output(reference: str, outputs: Any) -> Any:
    """Return the task output that a condition refers to.

    Args:
        reference: `pipelinechannel--TASK-OUTPUT`; both names may contain hyphens.
        outputs: The run's `kfp.local.io.IOStore`.

    Returns:
        The value; None if the reference names no task output, such as a pipeline parameter.
    """
    name = reference.removeprefix(_PREFIX)
    for index in (position for position, character in enumerate(name) if character == "-"):
        try:
            return outputs.get_task_output(name[:index], name[index + 1 :])
        except ValueError:
            continue
    return None
