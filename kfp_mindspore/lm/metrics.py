"""Metrics for generated texts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import ValidationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD = re.compile(r"\w+")


def compute_perplexity(losses: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return the exponential of the mean loss per counted token; infinite beyond a float's range.

    Args:
        losses: Cross entropies in nats, in any shape.
        weights: 1 where a token counts, else 0, in the same shape.

    Raises:
        ValidationError: No token counts.
    """
    import numpy as np

    total = float(weights.sum(dtype=np.float64))
    if total <= 0:
        raise ValidationError(["weights: at least one token must count, got none"])
    mean = float((losses.astype(np.float64) * weights).sum()) / total
    return math.exp(mean) if mean < 700 else math.inf


def score_answers(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Compare answers with their references.

    Args:
        answers: Generated texts.
        references: As many expected texts.

    Returns:
        Means from 0 to 1: `exact_match`, without blanks at both ends; `rouge_l`, the F measure of the longest common
        word subsequence in lower case; `valid_json`, the fraction of answers that are JSON.

    Raises:
        ValidationError: There are no answers, or not as many references.
    """
    if not answers or len(answers) != len(references):
        raise ValidationError([f"references: must be as many as the answers, got {len(references)} to {len(answers)}"])
    pairs = list(zip(answers, references, strict=True))
    scores = {
        "exact_match": [float(answer.strip() == reference.strip()) for answer, reference in pairs],
        "rouge_l": [compute_rouge_l(answer, reference) for answer, reference in pairs],
        "valid_json": [float(is_json(answer)) for answer in answers],
    }
    return {name: sum(values) / len(pairs) for name, values in scores.items()}


def compute_rouge_l(answer: str, reference: str) -> float:
    """Return two texts' ROUGE-L: the F measure by their longest common word subsequence, 0 to 1; 0 without words."""
    found, expected = (_WORD.findall(text.lower()) for text in (answer, reference))
    lengths = [0] * (len(expected) + 1)
    for word in found:
        previous = 0
        for index, other in enumerate(expected, 1):
            above = lengths[index]
            lengths[index] = previous + 1 if word == other else max(above, lengths[index - 1])
            previous = above
    return 2 * lengths[-1] / (len(found) + len(expected)) if lengths[-1] else 0.0


def is_json(text: str) -> bool:
    """Return whether a text is JSON, without Python's NaN and Infinity."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
