import pytest
from kfp import dsl

from ..component import evaluate_function

pytest_plugins = ["kfp_mindspore.testing"]


def test_function_predicts_with_bundle(run_component, lifecycle, tmp_path, monkeypatch) -> None:
    """Function predicts with the bundle."""
    (tmp_path / "blank_image.py").write_text(
        "import numpy as np\n"
        "def count_labels(runner, rows):\n"
        "    outputs = runner.predict({'image': np.zeros((rows, 1, 8, 8), np.float32)})\n"
        "    return {'labels': len(set(outputs['label'])), 'rows': len(outputs['label'])}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outputs = run_component(
        evaluate_function,
        {"bundle": (dsl.Model, lifecycle.bundle)},
        function="blank_image:count_labels",
        arguments={"rows": 5},
        threshold=1.0,
        lower_is_better=True,
    )
    assert outputs.parameters == {"metric": "labels", "value": 1.0, "passed": True}
    assert outputs.artifacts["metrics"]["metadata"]["rows"] == 5


def test_unknown_function_fails_step(run_component, lifecycle) -> None:
    """Unknown function fails the step."""
    with pytest.raises(RuntimeError, match="function: no module 'no_simulation'"):
        run_component(evaluate_function, {"bundle": (dsl.Model, lifecycle.bundle)}, function="no_simulation:play")
