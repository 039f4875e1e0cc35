"""Component that evaluates an exported model on held-out data."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def evaluate_mindir(
    bundle: Input[Model],
    dataset: Input[Dataset],
    metrics: Output[Metrics],
    confusion: Output[ClassificationMetrics],
    report: Output[HTML],
    threshold: float = 0.0,
    split: str = "test",
) -> NamedTuple("Outputs", [("accuracy", float), ("passed", bool), ("test_images", int)]):
    """Evaluate the graph of a model bundle on a held-out split and compare its accuracy with a threshold.

    The step succeeds whether or not the threshold is reached. A pipeline gives `passed` to `deploy_kserve` as its gate,
    or branches on it with `dsl.If`, which costs one more pod.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        metrics: accuracy, threshold, test_images, and recall by class.
        confusion: The confusion matrix: rows are true labels, columns predicted ones, values counts.
        report: HTML page with accuracy, threshold, confusion matrix, and precision and recall by class.
        threshold: Minimum accuracy that passes, 0 to 1.
        split: Split of the dataset to evaluate on.

    Returns:
        accuracy: Fraction of correct predictions, 0 to 1.
        passed: Whether the accuracy reaches the threshold.
        test_images: Number of samples evaluated.
    """
    from kfp_mindspore.steps.evaluate import evaluate_model

    return evaluate_model(bundle, dataset, metrics, confusion, report, threshold=threshold, split=split)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(evaluate_mindir, package_path=__file__.replace(".py", ".yaml"))
