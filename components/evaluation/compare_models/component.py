"""Component that compares a candidate with the model that serves, or with another bundle."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Markdown, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def compare_models(
    candidate: Input[Model],
    dataset: Input[Dataset],
    metrics: Output[Metrics],
    report: Output[Markdown],
    baseline: Input[Model] = None,
    service_name: str = "",
    namespace: str = "",
    threshold: float = 0.0,
    margin: float = 0.0,
    split: str = "test",
) -> NamedTuple("Outputs", [("better", bool), ("accuracy", float), ("baseline_accuracy", float)]):
    """Compare the accuracy of a candidate with that of a baseline on the same held-out samples.

    The baseline is a bundle, or the predictions of a live service. Without both the candidate only has to reach the
    threshold, so that the first run of a pipeline deploys. Disable caching of this step in a pipeline that compares
    with a service (`task.set_caching_options(False)`), so that each run tests the live service.

    Args:
        candidate: The candidate's model bundle.
        dataset: The dataset directory.
        metrics: accuracy, threshold, samples, and with a baseline baseline_accuracy and agreement.
        report: Markdown page with the metrics and the result.
        baseline: The baseline's model bundle; default the service.
        service_name: Name of the service that is the baseline; it is not an error if it does not exist.
        namespace: Namespace of the service; default the step's.
        threshold: Minimum accuracy of the candidate, 0 to 1.
        margin: Least difference of the accuracies that is better, 0 to 1; 0 accepts an equal accuracy.
        split: Split of the dataset to evaluate on.

    Returns:
        better: Whether the candidate reaches the threshold and the baseline's accuracy plus the margin.
        accuracy: The candidate's fraction of correct predictions, 0 to 1.
        baseline_accuracy: The baseline's fraction of correct predictions, 0 without a baseline.
    """
    from kfp_mindspore.steps.compare import compare_with_baseline

    return compare_with_baseline(
        candidate,
        dataset,
        metrics,
        report,
        baseline=baseline,
        service_name=service_name,
        namespace=namespace,
        threshold=threshold,
        margin=margin,
        split=split,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(compare_models, package_path=__file__.replace(".py", ".yaml"))
