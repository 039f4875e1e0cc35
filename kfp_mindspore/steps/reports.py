"""The HTML page of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassScores:
    """Precision and recall of one class; NaN where the denominator is 0.

    Args:
        label: The class.
        count: Number of its samples.
        precision: Fraction of the samples predicted as this class that belong to it.
        recall: Fraction of its samples that were predicted as this class.
    """

    label: str
    count: int
    precision: float
    recall: float


def compute_class_scores(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> list[ClassScores]:
    """Compute the precision and recall of each class.

    Args:
        labels: K class names.
        matrix: K × K counts: rows are true classes, columns predicted ones.
    """
    scores = []
    for index, label in enumerate(labels):
        hits, count = matrix[index][index], sum(matrix[index])
        predicted = sum(row[index] for row in matrix)
        scores.append(
            ClassScores(label, count, hits / predicted if predicted else math.nan, hits / count if count else math.nan)
        )
    return scores


def render_evaluation(labels: Sequence[str], matrix: Sequence[Sequence[int]], accuracy: float, threshold: float) -> str:
    """Render an evaluation as one self-contained HTML page.

    Args:
        labels: K class names.
        matrix: K × K counts: rows are true classes, columns predicted ones.
        accuracy: Fraction of correct predictions, 0 to 1.
        threshold: Minimum accuracy that passes.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kfp_mindspore.steps", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["fraction"] = lambda value: "-" if math.isnan(value) else f"{value:.3f}"
    return environment.get_template("evaluation.html.j2").render(
        labels=labels,
        matrix=matrix,
        largest=max((max(row) for row in matrix), default=0) or 1,
        scores=compute_class_scores(labels, matrix),
        count=sum(sum(row) for row in matrix),
        accuracy=accuracy,
        threshold=threshold,
        passed=accuracy >= threshold,
    )
