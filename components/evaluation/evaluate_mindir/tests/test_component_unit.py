import json
from unittest.mock import create_autospec

import pytest
from kfp import dsl

from ..component import evaluate_mindir


@pytest.mark.parametrize(("threshold", "passed"), [(0.0, True), (0.875, True), (0.9, False)])
def test_outputs_artifacts_and_gate(tmp_path, monkeypatch, threshold, passed) -> None:
    import numpy as np

    from kfp_mindspore import mindir
    from kfp_mindspore.mindir.evaluate import Evaluation

    evaluation = Evaluation(
        accuracy=0.875,
        confusion=np.array([[3, 1], [0, 4]]),
        labels=("cat", "dog"),
        count=8,
        predictions=np.array([0, 0, 0, 1, 1, 1, 1, 1], np.int32),
    )
    evaluate = create_autospec(mindir.evaluate_bundle, return_value=evaluation)
    monkeypatch.setattr(mindir, "evaluate_bundle", evaluate)
    monkeypatch.setenv("KFP_MINDSPORE_EVENTS", str(tmp_path / "events.jsonl"))
    metrics = dsl.Metrics(metadata={})
    confusion = dsl.ClassificationMetrics(metadata={})
    report = dsl.HTML(uri=str(tmp_path / "report.html"), metadata={})
    outputs = evaluate_mindir.python_func(
        bundle=dsl.Model(uri="/bundle"),
        dataset=dsl.Dataset(uri="/dataset"),
        metrics=metrics,
        confusion=confusion,
        report=report,
        threshold=threshold,
    )
    assert outputs == (0.875, passed, 8)
    evaluate.assert_called_once_with("/bundle", "/dataset", split="test")
    assert metrics.metadata == {
        "accuracy": 0.875,
        "threshold": threshold,
        "test_images": 8,
        "recall.cat": 0.75,
        "recall.dog": 1.0,
    }
    matrix = confusion.metadata["confusionMatrix"]
    assert [entry["displayName"] for entry in matrix["annotationSpecs"]] == ["cat", "dog"]
    assert [row["row"] for row in matrix["rows"]] == [[3, 1], [0, 4]]
    assert "Accuracy 0.8750" in (tmp_path / "report.html").read_text()
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert event["kind"] == "gate"
    assert (event["metric"], event["value"], event["threshold"], event["passed"]) == (
        "accuracy",
        0.875,
        threshold,
        passed,
    )
