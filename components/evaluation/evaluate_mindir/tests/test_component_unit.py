import json
from unittest.mock import create_autospec

import pytest
from kfp import dsl

from ..component import evaluate_mindir


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Evaluate a dataset of six samples with given scores in place of a graph's."""
    import numpy as np
    from kfp_mindspore import mindir
    from kfp_mindspore.data import read_samples
    from kfp_mindspore.formats.dataset import Column, Dataset, write_dataset
    from kfp_mindspore.mindir.evaluate import predict_task, summarize

    def call(task, target, scores, train=None, **arguments):
        target = np.array(target, np.int32 if task == "classification" else np.float32)
        columns = (Column("x", "float32", (2,)), Column("y", target.dtype.name, (), "target"))
        arrays = {"x": np.zeros((len(target), 2), np.float32), "y": target}
        splits = {"test": arrays} if train is None else {"train": {**arrays, "y": train}, "test": arrays}
        labels = ("cat", "dog") if task == "classification" else ()
        path = tmp_path / "dataset"
        write_dataset(path, name="pets", task=task, columns=columns, splits=splits, labels=labels)

        def compute(bundle_dir, dataset_dir, *, split="test", metric="", key=None, device="auto", device_id=None):
            assert device == arguments.get("device", "auto")
            opened = Dataset.open(dataset_dir)
            samples = read_samples(opened, split)
            return summarize(opened, predict_task(opened, samples, np.array(scores), subject=bundle_dir), metric)

        monkeypatch.setattr(mindir, "evaluate_bundle", create_autospec(mindir.evaluate_bundle, side_effect=compute))
        monkeypatch.setenv("KFP_MINDSPORE_EVENTS", str(tmp_path / "events.jsonl"))
        artifacts = {
            "metrics": dsl.Metrics(metadata={}),
            "confusion": dsl.ClassificationMetrics(metadata={}),
            "report": dsl.HTML(uri=str(tmp_path / "report.html"), metadata={}),
        }
        outputs = evaluate_mindir.python_func(
            bundle=dsl.Model(uri="/bundle"), dataset=dsl.Dataset(uri=str(path)), **artifacts, **arguments
        )
        return outputs, artifacts["metrics"].metadata, artifacts["confusion"].metadata

    return call


TARGET = [0, 0, 0, 1, 1, 0]
SCORES = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.1, 0.9], [0.3, 0.7], [0.6, 0.4]]


@pytest.mark.parametrize(
    ("arguments", "metric", "value", "passed"),
    [
        ({}, "accuracy", 5 / 6, True),
        ({"threshold": 0.8, "device": "CPU"}, "accuracy", 5 / 6, True),
        ({"threshold": 0.9}, "accuracy", 5 / 6, False),
        ({"metric": "balanced_accuracy", "threshold": 0.875}, "balanced_accuracy", 0.875, True),
        ({"metric": "roc_auc", "threshold": 1.0}, "roc_auc", 1.0, True),
    ],
)
def test_outputs_artifacts_and_gate(evaluate, tmp_path, capsys, arguments, metric, value, passed) -> None:
    """Outputs artifacts and gate."""
    outputs, metrics, confusion = evaluate("classification", TARGET, SCORES, **arguments)
    assert outputs == (metric, pytest.approx(value), "", 0.0, passed, 6)
    assert {name: metrics[name] for name in ("samples", "recall.cat", "recall.dog")} == {
        "samples": 6,
        "recall.cat": 0.75,
        "recall.dog": 1.0,
    }
    assert metrics.get("threshold") == arguments.get("threshold")
    assert metrics["accuracy"] == pytest.approx(5 / 6)
    matrix = confusion["confusionMatrix"]
    assert [entry["displayName"] for entry in matrix["annotationSpecs"]] == ["cat", "dog"]
    assert [row["row"] for row in matrix["rows"]] == [[3, 1], [0, 2]]
    assert f"<h1>{metric} {value:.4f}</h1>" in (tmp_path / "report.html").read_text()
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert event["kind"] == "gate"
    assert [event[name] for name in ("metric", "threshold", "passed")] == [metric, arguments.get("threshold"), passed]
    threshold, verdict = arguments.get("threshold"), "passed" if passed else "not met"
    gate = "no threshold" if threshold is None else f"threshold {threshold:g}: {verdict}"
    assert capsys.readouterr().out == f"{metric} {value:.6g}, {gate}\n"


@pytest.mark.parametrize(("threshold", "passed"), [(1.0, True), (0.9, False)])
def test_gate_of_error_is_upper_bound(evaluate, threshold, passed) -> None:
    """Gate of an error is an upper bound."""
    outputs, metrics, confusion = evaluate("regression", [1, 2, 3, 4], [2, 1, 4, 3], threshold=threshold)
    assert outputs == ("rmse", 1.0, "", 0.0, passed, 4)
    assert metrics == {"mae": 1.0, "rmse": 1.0, "r2": pytest.approx(0.2), "samples": 4, "threshold": threshold}
    assert confusion == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 95.0}, "threshold: must be 0 to 1, the range of accuracy, got 95"),
        ({"metric": "mae"}, "metric mae: is for regression, not classification"),
    ],
)
def test_invalid_gate_is_refused(evaluate, arguments, message) -> None:
    """Invalid gate is refused."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match=message):
        evaluate("classification", TARGET, SCORES, **arguments)


@pytest.mark.parametrize(
    ("arguments", "threshold", "passed"),
    [
        ({}, None, True),
        ({"beat_baseline": True}, 2.0, True),
        ({"beat_baseline": True, "threshold": 1.5}, 1.5, False),
        ({"beat_baseline": True, "threshold": 3.0}, 2.0, True),
    ],
)
def test_gate_is_baseline(evaluate, capsys, arguments, threshold, passed) -> None:
    """The gate is the baseline, unless the threshold is stricter."""
    import numpy as np

    train = np.array([6, 6, 6, 6], np.float32)
    outputs, metrics, _ = evaluate("regression", [4, 4, 4, 4], [2.2, 5.8, 2.2, 5.8], train=train, **arguments)
    assert outputs == ("rmse", pytest.approx(1.8), "mean", 2.0, passed, 4)
    assert (metrics["baseline.rmse"], metrics.get("threshold")) == (2.0, threshold)
    assert "baseline mean: rmse 2\nbaseline ridge regression: rmse 2\n" in capsys.readouterr().out


def test_gate_without_baseline_is_refused(evaluate) -> None:
    """A baseline gate is refused for data without a training split."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="beat_baseline: the task classification has no baseline"):
        evaluate("classification", TARGET, SCORES, beat_baseline=True)
