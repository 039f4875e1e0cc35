from __future__ import annotations

import pytest

from kfp_mindspore.compat import kfp_conditions as conditions


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("pipelinechannel--evaluate-mindir-accuracy", 0.97),
        ("pipelinechannel--evaluate-mindir-test_images", 360),
        ("pipelinechannel--evaluate-Output", True),
        ("pipelinechannel--threshold", None),
        ("pipelinechannel--evaluate-mindir-unknown", None),
    ],
)
def test_output_of_a_task_is_found_by_name(reference: str, expected: object) -> None:
    from kfp.local.io import IOStore

    store = IOStore()
    store.put_task_output("evaluate-mindir", "accuracy", 0.97)
    store.put_task_output("evaluate-mindir", "test_images", 360)
    store.put_task_output("evaluate", "Output", True)
    assert conditions.find_output(reference, store) == expected


@pytest.mark.parametrize(("threshold", "expected"), [(0.95, True), (0.99, False)])
def test_kfp_evaluates_a_condition_on_a_named_output(threshold: float, expected: bool) -> None:
    from kfp.local.io import IOStore
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    conditions.install()
    conditions.install()
    store = IOStore()
    store.put_task_output("evaluate-mindir", "accuracy", 0.97)
    store.put_parent_input("threshold", threshold)
    condition = (
        "inputs.parameter_values['pipelinechannel--evaluate-mindir-accuracy'] >= "
        "inputs.parameter_values['pipelinechannel--threshold']"
    )
    assert ConditionEvaluator.evaluate_condition(condition, store) is expected


def test_a_reference_without_a_value_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from kfp.local.io import IOStore
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    monkeypatch.setattr(conditions, "unresolved", [])
    conditions.install()
    condition = "inputs.parameter_values['pipelinechannel--gone-accuracy'] >= 0.9"
    assert ConditionEvaluator.evaluate_condition(condition, IOStore()) is False
    assert conditions.unresolved == ["gone-accuracy"]
