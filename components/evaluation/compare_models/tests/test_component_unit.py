import pytest
from kfp import dsl

from ..component import compare_models

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.fixture
def compare(monkeypatch, tmp_path, local_home):
    """Compare bundles whose evaluations have the given accuracies over ten samples."""
    import numpy as np

    from kfp_mindspore import mindir
    from kfp_mindspore.mindir.evaluate import Evaluation

    def call(accuracies, **arguments):
        def evaluate(bundle_dir, dataset_dir, *, split="test", key=None):
            hits = round(10 * accuracies[bundle_dir])
            predictions = np.array([0] * hits + [1] * (10 - hits), np.int32)
            return Evaluation(hits / 10, np.array([[hits, 10 - hits], [0, 0]]), ("a", "b"), 10, predictions)

        monkeypatch.setattr(mindir, "evaluate_bundle", evaluate)
        metrics = dsl.Metrics(metadata={})
        report = dsl.Markdown(uri=str(tmp_path / "report.md"), metadata={})
        baseline = dsl.Model(uri="/baseline") if "/baseline" in accuracies else None
        outputs = compare_models.python_func(
            candidate=dsl.Model(uri="/candidate"),
            dataset=dsl.Dataset(uri="/dataset"),
            metrics=metrics,
            report=report,
            baseline=baseline,
            **arguments,
        )
        return outputs, metrics.metadata, (tmp_path / "report.md").read_text()

    return call


@pytest.mark.parametrize(
    ("candidate", "baseline", "arguments", "better"),
    [
        (0.8, 0.8, {}, True),
        (0.8, 0.9, {}, False),
        (0.8, 0.7, {"margin": 0.2}, False),
        (0.9, 0.7, {"margin": 0.1}, True),
        (0.9, 0.7, {"threshold": 0.95}, False),
    ],
)
def test_better_needs_threshold_and_margin(compare, candidate, baseline, arguments, better) -> None:
    outputs, metrics, page = compare({"/candidate": candidate, "/baseline": baseline}, **arguments)
    assert outputs == (better, candidate, baseline)
    assert metrics["baseline_accuracy"] == baseline
    assert metrics["agreement"] == pytest.approx(1 - abs(candidate - baseline))
    assert ("not better" in page) is not better


@pytest.mark.parametrize(("threshold", "better"), [(0.0, True), (0.9, False)])
@pytest.mark.parametrize("service_name", ["", "missing"])
def test_first_candidate_needs_the_threshold_only(compare, threshold, better, service_name) -> None:
    outputs, metrics, page = compare({"/candidate": 0.8}, threshold=threshold, service_name=service_name)
    assert outputs == (better, 0.8, 0.0)
    assert "baseline_accuracy" not in metrics
    assert "Baseline: none" in page
