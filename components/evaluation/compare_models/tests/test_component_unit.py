import pytest
from kfp import dsl

from ..component import compare_models

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.fixture
def compare(monkeypatch, tmp_path, local_home):
    """Compare bundles whose evaluations have the given errors over 200 samples."""
    import numpy as np
    from kfp_mindspore import mindir
    from kfp_mindspore.evaluation.predictions import build_predictions
    from kfp_mindspore.formats.dataset import Column, Dataset, write_dataset
    from kfp_mindspore.mindir.evaluate import summarize

    path = tmp_path / "dataset"
    target = np.arange(200, dtype=np.int32) % 2
    columns = (Column("x", "float32", (1,)), Column("y", "int32", (), "target"))
    splits = {"test": {"x": np.zeros((200, 1), np.float32), "y": target}}
    write_dataset(path, name="x", task="classification", columns=columns, splits=splits, labels=("a", "b"))

    def call(errors, **arguments):
        def evaluate(bundle_dir, dataset_dir, *, split="test", metric="", key=None):
            wrong = np.arange(200) < errors[bundle_dir]
            scores = np.eye(2)[np.where(wrong, 1 - target, target)]
            return summarize(Dataset.open(dataset_dir), build_predictions("classification", scores, target), metric)

        monkeypatch.setattr(mindir, "evaluate_bundle", evaluate)
        metrics = dsl.Metrics(metadata={})
        report = dsl.Markdown(uri=str(tmp_path / "report.md"), metadata={})
        outputs = compare_models.python_func(
            candidate=dsl.Model(uri="/candidate"),
            dataset=dsl.Dataset(uri=str(path)),
            metrics=metrics,
            report=report,
            baseline=dsl.Model(uri="/baseline") if "/baseline" in errors else None,
            **arguments,
        )
        return outputs, metrics.metadata, (tmp_path / "report.md").read_text()

    return call


@pytest.mark.parametrize(
    ("candidate", "baseline", "arguments", "better"),
    [
        (20, 60, {}, True),
        (20, 22, {}, False),  # within chance
        (20, 22, {"confidence": 0.5}, True),
        (20, 20, {}, False),
        (20, 20, {"margin": -0.01}, True),
        (60, 20, {}, False),
        (20, 60, {"margin": 0.1}, True),
        (20, 60, {"margin": 0.19}, False),
        (20, 60, {"threshold": 0.95}, False),
        (20, 60, {"metric": "log_loss", "threshold": 4.0}, True),
    ],
)
def test_better_needs_threshold_and_interval_above_margin(compare, candidate, baseline, arguments, better) -> None:
    """Better needs threshold and an interval above the margin."""
    outputs, metrics, page = compare({"/candidate": candidate, "/baseline": baseline}, **arguments)
    metric = arguments.get("metric", "accuracy")
    assert (outputs.better, outputs.metric) == (better, metric)
    assert outputs.low <= outputs.improvement <= outputs.high
    assert metrics[f"baseline_{metric}"] == outputs.baseline_value
    assert abs(metrics["improvement"]) == pytest.approx(abs(outputs.value - outputs.baseline_value))
    assert (metrics["improvement"] > 0) is (candidate < baseline)
    assert metrics["agreement"] == pytest.approx(1 - abs(candidate - baseline) / 200)
    assert ("not better" in page) is not better
    assert f"interval {outputs.low:g} to {outputs.high:g}" in page


@pytest.mark.parametrize(("threshold", "better"), [(None, True), (0.9, True), (0.95, False)])
@pytest.mark.parametrize("service_name", ["", "missing"])
def test_first_candidate_needs_threshold_only(compare, threshold, better, service_name) -> None:
    """First candidate needs the threshold only."""
    outputs, metrics, page = compare({"/candidate": 20}, threshold=threshold, service_name=service_name)
    assert outputs == (better, "accuracy", 0.9, 0, 0, 0, 0)
    assert "baseline_accuracy" not in metrics
    assert "Baseline: none" in page
