"""The HTML page of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassScores:
    """How well one class was told from the others; NaN where there is nothing to divide by.

    Args:
        label: The class.
        count: Number of samples of it.
        precision: Share of the samples predicted as it that are it.
        recall: Share of its samples that were predicted as it.
    """

    label: str
    count: int
    precision: float
    recall: float


def measure_classes(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> list[ClassScores]:
    """Compute each class's precision and recall.

    Args:
        labels: K class names.
        matrix: K × K counts: rows true classes, columns predicted ones.
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
    """Render an evaluation as one HTML page that needs nothing else.

    Args:
        labels: K class names.
        matrix: K × K counts: rows true classes, columns predicted ones.
        accuracy: Share of right predictions, 0 to 1.
        threshold: Least accuracy that passes.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kfp_mindspore.dsl", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["share"] = lambda value: "-" if math.isnan(value) else f"{value:.3f}"
    return environment.get_template("evaluation.html.j2").render(
        labels=labels,
        matrix=matrix,
        largest=max((max(row) for row in matrix), default=0) or 1,
        scores=measure_classes(labels, matrix),
        count=sum(sum(row) for row in matrix),
        accuracy=accuracy,
        threshold=threshold,
        passed=accuracy >= threshold,
    )
