from __future__ import annotations

import math

import pytest

from kfp_mindspore.steps.reports import compute_class_scores, render_evaluation

LABELS = ["<cat>", "dog", "owl"]
MATRIX = [[3, 1, 0], [0, 4, 0], [0, 0, 0]]


def test_precision_and_recall_by_class() -> None:
    cat, dog, owl = compute_class_scores(LABELS, MATRIX)
    assert (cat.count, cat.precision, cat.recall) == (4, 1.0, 0.75)
    assert (dog.count, dog.precision, dog.recall) == (4, 0.8, 1.0)
    assert owl.count == 0
    assert math.isnan(owl.precision)
    assert math.isnan(owl.recall)


@pytest.mark.parametrize(
    ("threshold", "found", "absent"),
    [(0.8, ">met<", "not met"), (0.9, ">not met<", ">met<"), (0.0, "8 held-out samples.", "gate")],
)
def test_page_shows_gate_decision(threshold: float, found: str, absent: str) -> None:
    page = render_evaluation(LABELS, MATRIX, 0.875, threshold)
    assert found in page
    assert absent not in page
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page
    assert page.count('class="cell"') == 9
