from __future__ import annotations

import subprocess
import sys

import pytest

from kfp_mindspore.compat import kfp_conditions


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("pipelinechannel--evaluate-mindir-accuracy", 0.97),
        ("pipelinechannel--evaluate-mindir-samples", 360),
        ("pipelinechannel--evaluate-Output", True),
        ("pipelinechannel--threshold", None),
        ("pipelinechannel--evaluate-mindir-unknown", None),
    ],
)
def test_task_output_is_resolved_by_name(reference: str, expected: object) -> None:
    from kfp.local.io import IOStore

    store = IOStore()
    store.put_task_output("evaluate-mindir", "accuracy", 0.97)
    store.put_task_output("evaluate-mindir", "samples", 360)
    store.put_task_output("evaluate", "Output", True)
    assert kfp_conditions.get_task_output(reference, store) == expected


@pytest.mark.parametrize(("threshold", "expected"), [(0.95, True), (0.99, False)])
def test_condition_on_named_output_is_evaluated(threshold: float, expected: bool) -> None:
    from kfp.local.io import IOStore
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    kfp_conditions.install()
    kfp_conditions.install()
    store = IOStore()
    store.put_task_output("evaluate-mindir", "accuracy", 0.97)
    store.put_parent_input("threshold", threshold)
    condition = (
        "inputs.parameter_values['pipelinechannel--evaluate-mindir-accuracy'] >= "
        "inputs.parameter_values['pipelinechannel--threshold']"
    )
    assert ConditionEvaluator.evaluate_condition(condition, store) is expected


def test_reference_without_value_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from kfp.local.io import IOStore
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    monkeypatch.setattr(kfp_conditions, "unresolved", [])
    kfp_conditions.install()
    condition = "inputs.parameter_values['pipelinechannel--gone-accuracy'] >= 0.9"
    assert ConditionEvaluator.evaluate_condition(condition, IOStore()) is False
    assert kfp_conditions.unresolved == ["gone-accuracy"]


def test_patch_is_still_needed() -> None:
    """If this fails, kfp resolves named outputs itself: delete kfp_conditions."""
    program = """
from kfp_mindspore.compat.lazy_kfp import import_kfp
import_kfp()
import kfp_mindspore.pipelines.training.digits_lifecycle.pipeline
from kfp.local.io import IOStore
from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator
store = IOStore()
store.put_task_output("evaluate", "accuracy", 1.0)
condition = "inputs.parameter_values['pipelinechannel--evaluate-accuracy'] >= 0.5"
assert ConditionEvaluator.evaluate_condition(condition, store) is False
"""
    subprocess.run([sys.executable, "-c", program], check=True)
