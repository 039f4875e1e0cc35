"""The step that compares a model bundle with the model that serves, or with another bundle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.errors import NotFoundError

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.mindir.evaluate import Evaluation


def compare_with_baseline(
    candidate: dsl.Model,
    dataset: dsl.Dataset,
    metrics: dsl.Metrics,
    report: dsl.Markdown,
    *,
    baseline: dsl.Model | None = None,
    service_name: str = "",
    namespace: str = "",
    threshold: float = 0.0,
    margin: float = 0.0,
    split: str = "test",
) -> tuple[bool, float, float]:
    """Compare the accuracy of a candidate with that of a baseline on the same held-out samples.

    Args:
        candidate: The candidate's bundle.
        dataset: The dataset directory.
        metrics: Receives accuracy, baseline_accuracy, agreement, threshold and samples.
        report: Receives the Markdown page.
        baseline: The baseline's bundle; None for the service's predictions.
        service_name: Name of the service that is the baseline; without such a service there is no baseline.
        namespace: Its namespace; empty for the step's.
        threshold: Minimum accuracy of the candidate, 0 to 1.
        margin: Minimum difference between the accuracies, 0 to 1; 0 also accepts an equal accuracy.
        split: Split of the dataset.

    Returns:
        Whether the candidate is better, its accuracy, and the baseline's accuracy (0 without a baseline).

    Raises:
        UserError: A bundle or the dataset is damaged, or they do not fit together.
        RequestError: The service exists and does not answer.
    """
    from kfp_mindspore.mindir import evaluate_bundle

    evaluation = evaluate_bundle(candidate.path, dataset.path, split=split)
    name, accuracy, agreement = "none", 0.0, 0.0
    if baseline is not None:
        other = evaluate_bundle(baseline.path, dataset.path, split=split)
        name, accuracy = "bundle", other.accuracy
        agreement = float((other.predictions == evaluation.predictions).mean())
    elif service_name and (found := _evaluate_service(service_name, namespace, dataset.path, split, evaluation)):
        name, accuracy, agreement = found
    better = evaluation.accuracy >= threshold and (name == "none" or evaluation.accuracy >= accuracy + margin)
    values = {
        "accuracy": evaluation.accuracy,
        "threshold": threshold,
        "samples": evaluation.count,
        **({} if name == "none" else {"baseline_accuracy": accuracy, "agreement": agreement}),
    }
    for key, value in values.items():
        metrics.log_metric(key, value)
    Path(report.path).write_text(_render(name, values, better, margin), encoding="utf-8")
    print(
        f"accuracy {evaluation.accuracy:.4f}, baseline ({name}) {accuracy:.4f}: {'better' if better else 'not better'}"
    )
    return better, evaluation.accuracy, accuracy


def _evaluate_service(
    name: str, namespace: str, dataset_dir: str, split: str, candidate: Evaluation
) -> tuple[str, float, float] | None:
    """Return a description, the accuracy and the agreement of a live service; None if it does not exist."""
    from kfp_mindspore.data import read_samples
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.predict import predict

    try:
        status = InferenceClient(namespace=namespace).get(name)
    except NotFoundError:
        print(f"service {name}: does not exist, there is no baseline")
        return None
    samples = read_samples(dataset_dir, split)
    (features,) = samples.inputs.values()
    scores = next(iter(predict(status.url, name, features).values()))
    predictions = scores.argmax(axis=1)
    accuracy, agreement = (float((predictions == other).mean()) for other in (samples.target, candidate.predictions))
    return f"service {name}, version {status.version}", accuracy, agreement


def _render(baseline: str, values: dict[str, float], better: bool, margin: float) -> str:
    rows = [
        f"| {name.replace('_', ' ')} | {value:g} |" if not math.isnan(value) else f"| {name} | - |"
        for name, value in values.items()
    ]
    verdict = "better" if better else "not better"
    head = [f"# The candidate is {verdict}", "", f"Baseline: {baseline}. Required margin: {margin:g}.", ""]
    return "\n".join([*head, "| metric | value |", "|---|---|", *rows, ""])
