"""Metrics of generated texts equal hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.metrics import compute_perplexity, compute_rouge_l, is_json, score_answers


def test_perplexity_is_weighted_by_tokens() -> None:
    losses = np.log(np.array([[2.0, 8.0, 100.0], [4.0, 1.0, 1.0]], np.float32))
    weights = np.array([[1, 1, 0], [1, 0, 0]], np.float32)
    assert compute_perplexity(losses, weights) == pytest.approx(4.0)
    assert compute_perplexity(np.array([1000.0]), np.ones(1)) == math.inf
    with pytest.raises(ValidationError, match="at least one token must count"):
        compute_perplexity(losses, np.zeros_like(weights))


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("police killed the gunman", "police kill the gunman", 0.75),
        ("The gunman police killed.", "police killed the gunman", 0.5),
        ("Zürich ist schön", "zürich IST schön!", 1.0),
        ("", "a", 0.0),
        ("a", "...", 0.0),
        ("a", "b", 0.0),
    ],
)
def test_rouge_l_is_f_measure_of_common_subsequence(answer: str, reference: str, score: float) -> None:
    assert compute_rouge_l(answer, reference) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "valid"),
    [('{"a": [1]}', True), ("3", True), ("{", False), ("NaN", False), ("", False), ("[" * 10000, False)],
)
def test_json_is_recognised(text: str, valid: bool) -> None:
    assert is_json(text) is valid


def test_scores_are_means() -> None:
    scores = score_answers([" {} ", "a b"], ["{}", "a c"])
    assert scores == {"exact_match": 0.5, "rouge_l": 0.25, "valid_json": 0.5}
    for answers, references in ((["a"], []), ([], [])):
        with pytest.raises(ValidationError, match="must be as many as the answers"):
            score_answers(answers, references)
