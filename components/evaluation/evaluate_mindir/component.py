"""Evaluates an exported model on held-out data and says whether it passes."""

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
    """Evaluate a model bundle's graph on a held-out split and compare its accuracy with a threshold.

    The step succeeds whether or not the model passes: a pipeline decides by `dsl.If` on an output what happens then.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        metrics: accuracy, threshold and test_images, and recall by class.
        confusion: The confusion matrix: rows are true labels, columns predicted ones, values counts.
        report: The same for people: accuracy beside the threshold, the matrix, precision and recall by class.
        threshold: Least accuracy that passes, 0 to 1.
        split: Split of the dataset to evaluate on.

    Returns:
        accuracy: Share of samples whose label was predicted, 0 to 1.
        passed: Whether the accuracy reaches the threshold.
        test_images: Number of samples evaluated.
    """
    from kfp_mindspore.mindir import evaluate_bundle
    from kfp_mindspore.steps.artifacts import record_evaluation

    evaluation = evaluate_bundle(bundle.path, dataset.path, split=split)
    passed = record_evaluation(evaluation, threshold, metrics, confusion, report)
    return evaluation.accuracy, passed, evaluation.count


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(evaluate_mindir, package_path=__file__.replace(".py", ".yaml"))
