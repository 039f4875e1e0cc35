"""The step that compares a model bundle with the model that serves, or with another bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore.errors import NotFoundError

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.evaluation.comparison import Comparison
    from kfp_mindspore.evaluation.predictions import Predictions
    from kfp_mindspore.formats.dataset import Dataset


class ComparisonOutputs(NamedTuple):
    """compare_models outputs.

    Args:
        better: Whether the candidate reaches the threshold and is better than the baseline by more than chance.
        metric: Metric name.
        value: The candidate's metric.
        baseline_value: The baseline's metric; 0 without a baseline.
        improvement: Difference between the two, positive where the candidate is better; 0 without a baseline.
        low: The improvement interval's lower bound.
        high: Upper bound.
    """

    better: bool
    metric: str
    value: float
    baseline_value: float = 0.0
    improvement: float = 0.0
    low: float = 0.0
    high: float = 0.0


def compare_with_baseline(
    candidate: dsl.Model,
    dataset: dsl.Dataset,
    metrics: dsl.Metrics,
    report: dsl.Markdown,
    *,
    baseline: dsl.Model | None = None,
    service_name: str = "",
    namespace: str = "",
    metric: str = "",
    threshold: float | None = None,
    margin: float = 0.0,
    confidence: float = 0.95,
    split: str = "test",
) -> ComparisonOutputs:
    """Compare a candidate's metric with a baseline's on the same held-out samples.

    The candidate is better if the improvement's whole bootstrap interval lies above the margin.

    Args:
        candidate: The candidate's bundle.
        dataset: The dataset directory.
        metrics: Receives the metric, samples, threshold, and with a baseline `baseline_<metric>`, improvement, its
            interval and, for classes and tokens, agreement.
        report: Receives the Markdown page.
        baseline: The baseline's bundle; None for the service's predictions.
        service_name: Name of the baseline service; without such a service there is no baseline.
        namespace: Service namespace; empty for the step's.
        metric: Metric to compare; empty for the task's default.
        threshold: Metric value that the candidate must reach; None without a threshold.
        margin: Improvement that the interval must exceed, in metric units; below 0 accepts models that are worse by
            less.
        confidence: The interval's confidence, between 0 and 1.
        split: The dataset's split.

    Raises:
        UserError: A bundle or the dataset is damaged, they do not fit together, or an argument is invalid.
        RequestError: The service exists and does not answer.
    """
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.evaluation import compare_predictions, get_metric
    from kfp_mindspore.evaluation.comparison import check_confidence
    from kfp_mindspore.evaluation.metrics import check_threshold
    from kfp_mindspore.formats.dataset import Dataset
    from kfp_mindspore.mindir import evaluate_bundle

    opened = Dataset.open(dataset.path)
    check_threshold(metric, threshold, task=opened.task)
    check_confidence(confidence)
    compared = get_metric(metric, opened.task)
    import_mindspore()
    evaluation = evaluate_bundle(candidate.path, dataset.path, split=split, metric=compared.name)
    name, other = "none", None
    if baseline is not None:
        name, other = "bundle", evaluate_bundle(baseline.path, dataset.path, split=split).predictions
    elif service_name and (found := _predict_by_service(service_name, namespace, opened, split, candidate.path)):
        name, other = found
    better = compared.is_met(evaluation.value, threshold)
    outputs = ComparisonOutputs(better, compared.name, evaluation.value)
    values = {compared.name: evaluation.value, "samples": float(evaluation.count)}
    if threshold is not None:
        values["threshold"] = threshold
    if other is not None:
        result = compare_predictions(compared, evaluation.predictions, other, confidence=confidence)
        outputs = ComparisonOutputs(
            better and result.low > margin,
            compared.name,
            evaluation.value,
            compared(other),
            result.improvement,
            result.low,
            result.high,
        )
        values |= _describe_improvement(outputs, result, evaluation.predictions, other)
    for key, value in values.items():
        metrics.log_metric(key, value)
    Path(report.path).write_text(_render(name, values, outputs, margin, confidence), encoding="utf-8")
    print(
        f"{compared.name} {outputs.value:.4f}, baseline ({name}) {outputs.baseline_value:.4f}: "
        f"{'better' if outputs.better else 'not better'}"
    )
    return outputs


def _describe_improvement(
    outputs: ComparisonOutputs, result: Comparison, candidate: Predictions, baseline: Predictions
) -> dict[str, float]:
    values = {
        f"baseline_{outputs.metric}": outputs.baseline_value,
        "improvement": result.improvement,
        "improvement_low": result.low,
        "improvement_high": result.high,
    }
    if candidate.hits is not None:
        # Text padding has the target -1.
        values["agreement"] = float((candidate.values == baseline.values)[candidate.target >= 0].mean())
    return values


def _predict_by_service(
    name: str, namespace: str, dataset: Dataset, split: str, bundle_dir: str
) -> tuple[str, Predictions] | None:
    """Return a description and a live service's predictions; None if it does not exist."""
    from kfp_mindspore.data.samples import read_samples
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.predict import ROWS, predict
    from kfp_mindspore.inference.smoke import get_max_rows
    from kfp_mindspore.mindir.evaluate import get_score_name, predict_task

    try:
        status = InferenceClient(namespace=namespace).get(name)
    except NotFoundError:
        print(f"service {name}: does not exist, there is no baseline")
        return None
    samples = read_samples(dataset, split)
    raw = samples.raw if len(samples.raw) > 1 else next(iter(samples.raw.values()))
    bundle = ModelBundle.open(bundle_dir)
    outputs = predict(status.url, name, raw, rows=get_max_rows(bundle) or ROWS)
    scores = outputs[get_score_name(bundle.signature, outputs)]
    return f"service {name}, version {status.version}", predict_task(
        dataset, samples, scores, subject=f"service {name}"
    )


def _render(
    baseline: str, values: dict[str, float], outputs: ComparisonOutputs, margin: float, confidence: float
) -> str:
    lines = [f"# The candidate is {'better' if outputs.better else 'not better'}", "", f"Baseline: {baseline}.", ""]
    if baseline != "none":
        lines += [
            f"Improvement of {outputs.metric}: {outputs.improvement:g}, {confidence:.0%} interval "
            f"{outputs.low:g} to {outputs.high:g} (paired bootstrap). Better is an interval above {margin:g}.",
            "",
        ]
    rows = [f"| {name.replace('_', ' ')} | {value:g} |" for name, value in values.items()]
    return "\n".join([*lines, "| metric | value |", "|---|---|", *rows, ""])
