"""What a step tells of its artifacts: their metadata as KFP stores it, metrics, the confusion matrix, the HTML page.

KFP keeps text and numbers as metadata and nothing else, so everything with a structure is a JSON text.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.formats.dataset import Dataset
    from kfp_mindspore.inference import ServiceStatus
    from kfp_mindspore.inference.smoke import SmokeReport
    from kfp_mindspore.mindir.evaluate import Evaluation
    from kfp_mindspore.steps.train import TrainingResult


def record_dataset(dataset: Dataset, artifact: dsl.Dataset) -> None:
    """Describe a dataset directory in its artifact's metadata."""
    artifact.metadata.update(
        name=dataset.name,
        seed=dataset.seed,
        labels=_to_text(dataset.labels),
        features=_to_text(vars(dataset.features)),
        splits=_to_text(dataset.splits),
        digests=_to_text(dataset.digests),
    )


def record_training(result: TrainingResult, model: dsl.Model, metrics: dsl.Metrics) -> None:
    """Describe a finished training job in its model's metadata and log its newest metrics."""
    model.metadata.update(
        framework="mindspore",
        job=result.job_name,
        namespace=result.namespace,
        workers=result.workers,
        command=_to_text(result.command),
        hyperparameters=_to_text(result.hyperparameters),
    )
    if result.checkpoint is not None:
        model.metadata.update(
            framework_version=result.checkpoint.mindspore_version,
            network=_to_text(vars(result.checkpoint.network)),
            epoch=result.checkpoint.epoch,
            step=result.checkpoint.step,
            seed=result.checkpoint.seed,
        )
    for name, value in result.metrics.items():
        metrics.log_metric(name, value)


def record_bundle(bundle: ModelBundle, artifact: dsl.Model) -> float:
    """Describe a model bundle in its artifact's metadata.

    Returns:
        Largest absolute difference between the exported graph's outputs and the network's.
    """
    signature = bundle.signature
    difference = float(signature.verified["max_abs_diff"])
    artifact.metadata.update(
        framework="mindspore",
        framework_version=signature.mindspore_version,
        format="mindir",
        inputs=_to_text([spec.to_dict() for spec in signature.inputs]),
        outputs=_to_text([spec.to_dict() for spec in signature.outputs]),
        files=_to_text(signature.files),
        verified=_to_text(signature.verified),
        labels=_to_text(signature.labels),
        max_abs_diff=difference,
    )
    return difference


def record_evaluation(
    evaluation: Evaluation,
    threshold: float,
    metrics: dsl.Metrics,
    confusion: dsl.ClassificationMetrics,
    report: dsl.HTML,
) -> bool:
    """Log an evaluation as metrics, confusion matrix and page, and tell a listening run what the gate decides.

    Args:
        evaluation: A classifier's result.
        threshold: Least accuracy that passes, 0 to 1.
        metrics: Gets accuracy, threshold, test_images, and `recall.<class>` of each class that the split holds.
        confusion: Gets the confusion matrix.
        report: Gets the HTML page.

    Returns:
        Whether the accuracy reaches the threshold; one that is no number does not.
    """
    from kfp_mindspore.steps.reports import measure_classes, render_evaluation

    passed = evaluation.accuracy >= threshold
    events.emit("gate", "accuracy", metric="accuracy", value=evaluation.accuracy, threshold=threshold, passed=passed)
    metrics.log_metric("accuracy", evaluation.accuracy)
    metrics.log_metric("threshold", threshold)
    metrics.log_metric("test_images", evaluation.count)
    matrix = evaluation.confusion.tolist()
    for row in measure_classes(evaluation.labels, matrix):
        if not math.isnan(row.recall):
            metrics.log_metric(f"recall.{row.label}", round(row.recall, 6))
    confusion.log_confusion_matrix(list(evaluation.labels), matrix)
    with open(report.path, "w", encoding="utf-8") as file:  # noqa: PTH123 - kfp gives the path as text
        file.write(render_evaluation(evaluation.labels, matrix, evaluation.accuracy, threshold))
    return passed


def record_deployment(status: ServiceStatus) -> tuple[str, str, str]:
    """Print what the backend does not honour and return a deployment's outputs: URL, gRPC address, name."""
    for warning in status.warnings:
        print(f"warning: {warning}", flush=True)
    return status.url, status.grpc_url, status.name


def record_smoke_test(report: SmokeReport) -> tuple[str, str, float, int]:
    """Return what a smoke test found as a step's outputs: prediction, label, largest difference, samples."""
    return str(report.prediction), str(report.label), float(report.max_abs_diff), int(report.samples)


def _to_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_convert)


def _convert(value: Any) -> Any:
    return dict(value)
