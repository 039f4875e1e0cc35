"""Component that evaluates an exported model on held-out data."""

from typing import NamedTuple, Optional

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def evaluate_mindir(
    bundle: Input[Model],
    dataset: Input[Dataset],
    metrics: Output[Metrics],
    confusion: Output[ClassificationMetrics],
    report: Output[HTML],
    metric: str = "",
    threshold: Optional[float] = None,
    split: str = "test",
    beat_baseline: bool = False,
    device: str = "auto",
) -> NamedTuple(
    "Outputs",
    [
        ("metric", str),
        ("value", float),
        ("baseline", str),
        ("baseline_value", float),
        ("passed", bool),
        ("samples", int),
    ],
):
    """Evaluate a model bundle's graph on a held-out split and compare a metric with a threshold.

    The dataset's task decides the metrics: classification, multi_label, regression, language_model or ranking. A
    threshold outside the metric's range is refused. Baselines on the same splits are the mean and ridge regression, or
    class frequencies and logistic regression. The step succeeds whether or not the threshold is reached. A
    pipeline gives `passed` to `deploy_kserve` as its gate, or branches on it with `dsl.If`, which costs one more pod.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        metrics: The metrics of the dataset's task, the best baseline's, threshold, samples, and recall by class.
        confusion: A classification's confusion matrix: rows are true labels, columns predicted ones.
        report: HTML page with metrics, worst samples and, by task, confusion matrix, calibration or residual plot.
        metric: Gate metric; default by task: accuracy, f1_macro, rmse, perplexity or ndcg@10.
        threshold: Metric value that passes, as does a better one; default no gate.
        split: Dataset split to evaluate on.
        beat_baseline: Whether the best baseline's metric is the threshold, unless `threshold` is stricter.
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error.

    Returns:
        metric: Metric name.
        value: Its value.
        baseline: The baseline with the best value, such as ridge regression; empty without one.
        baseline_value: Its value; 0 without a baseline.
        passed: Whether the value reaches the threshold.
        samples: Samples evaluated.
    """
    from kfp_mindspore.steps.evaluation.evaluate import evaluate_model

    return evaluate_model(
        bundle,
        dataset,
        metrics,
        confusion,
        report,
        metric=metric,
        threshold=threshold,
        split=split,
        beat_baseline=beat_baseline,
        device=device,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(evaluate_mindir, package_path=__file__.replace(".py", ".yaml"))
