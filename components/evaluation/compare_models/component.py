"""Component that compares a candidate with the model that serves, or with another bundle."""

from typing import NamedTuple, Optional

from kfp import dsl
from kfp.dsl import Dataset, Input, Markdown, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def compare_models(
    candidate: Input[Model],
    dataset: Input[Dataset],
    metrics: Output[Metrics],
    report: Output[Markdown],
    baseline: Input[Model] = None,
    service_name: str = "",
    namespace: str = "",
    metric: str = "",
    threshold: Optional[float] = None,
    margin: float = 0.0,
    confidence: float = 0.95,
    split: str = "test",
) -> NamedTuple(
    "Outputs",
    [
        ("better", bool),
        ("metric", str),
        ("value", float),
        ("baseline_value", float),
        ("improvement", float),
        ("low", float),
        ("high", float),
    ],
):
    """Compare a candidate's metric with a baseline's on the same held-out samples.

    The candidate is better if its improvement's interval lies above the margin: the samples are drawn 1,000 times with
    replacement for both models (paired bootstrap), and the interval holds the central improvements. The baseline is a
    bundle, or a live service's predictions. Without both the candidate only has to reach the threshold, so that a
    pipeline's first run deploys. Disable caching for this step in a pipeline that compares with a service
    (`task.set_caching_options(False)`), so that each run tests the live service.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        candidate: The candidate's model bundle.
        dataset: The dataset directory.
        metrics: The metric, threshold, samples, and with a baseline its metric, the improvement and the agreement.
        report: Markdown page with the metrics and the result.
        baseline: The baseline's model bundle; default the service.
        service_name: Name of the baseline service; it is not an error if it does not exist.
        namespace: Service namespace; default the step's.
        metric: Metric to compare; default the task's, see `evaluate_mindir`.
        threshold: Metric value that the candidate must reach; default none.
        margin: Least improvement that is better, in metric units; below 0 also accepts slightly worse models.
        confidence: The interval's confidence, between 0 and 1.
        split: Dataset split to evaluate on.

    Returns:
        better: Whether the candidate reaches the threshold and its improvement's interval lies above the margin.
        metric: Metric name.
        value: The candidate's metric.
        baseline_value: The baseline's metric, 0 without a baseline.
        improvement: Their difference, positive where the candidate is better; 0 without a baseline.
        low: The improvement interval's lower bound.
        high: The interval's upper bound.
    """
    from kfp_mindspore.steps.evaluation.compare import compare_with_baseline

    return compare_with_baseline(
        candidate,
        dataset,
        metrics,
        report,
        baseline=baseline,
        service_name=service_name,
        namespace=namespace,
        metric=metric,
        threshold=threshold,
        margin=margin,
        confidence=confidence,
        split=split,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(compare_models, package_path=__file__.replace(".py", ".yaml"))
