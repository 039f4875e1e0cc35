"""Search for questions' answers by embeddings, and by TF-IDF as the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError, require_extra
from kfp_mindspore.lm.embedding import TextEmbedder
from kfp_mindspore.lm.options import MRR, RECALL

_ROWS = 256


def search_answers(
    records: Sequence[Mapping[str, Any]], bundle: Path | None, *, subject: str, verbose: bool = False
) -> tuple[dict[str, float], list[tuple[str, str, str]]]:
    """Search all answers for each question's own.

    Equal questions are one, whose right answers are all of theirs; equal answers are one. Wrong answers that are as
    similar as the right one precede it, such as all answers without a word of the question by TF-IDF.

    Args:
        records: With `prompt`, the question, and `completion`, the answer.
        bundle: An `embedding` bundle; None for TF-IDF.
        subject: The records' origin, for messages.
        verbose: Whether to print a line per 256 texts that the model has read.

    Returns:
        `recall_at_5`, the fraction of questions with a right answer among the first five, and `mrr`, the mean of
        the right answer's 1 / rank; for each question its text, a right answer and the answer found first.

    Raises:
        ValidationError: A record lacks a text; the message has its number.
    """
    right: dict[str, list[int]] = {}
    places: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        for name in ("prompt", "completion"):
            if not isinstance(record.get(name), str):
                found = type(record[name]).__name__ if name in record else "nothing"
                raise ValidationError([f"{name}: must be a text, got {found}"], subject=f"{subject}: example {number}")
        place = places.setdefault(record["completion"], len(places))
        right.setdefault(record["prompt"], []).append(place)
    questions, answers = list(right), list(places)
    if bundle is None:
        rows, columns = embed_by_words(questions, answers)
    else:
        embedder = TextEmbedder.open(bundle)
        texts, parts = [*questions, *answers], []
        for start in range(0, len(texts), _ROWS):
            parts.append(embedder.embed(texts[start : start + _ROWS]))
            if verbose:
                print(f"{min(start + _ROWS, len(texts))} of {len(texts)} texts", flush=True)
        rows, columns = np.split(np.concatenate(parts), [len(questions)])
        # Cosines, also of a model without normalisation.
        rows, columns = (array / np.linalg.norm(array, axis=1, keepdims=True) for array in (rows, columns))
    ranks, first = rank_right(rows, columns, list(right.values()))
    firsts = [
        (question, answers[right[question][0]], answers[found])
        for question, found in zip(questions, first, strict=True)
    ]
    return summarise_ranks(ranks), firsts


def rank_right(rows: Any, columns: Any, right: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each query's rank of its first right document from 1, and the document found first, (queries,) each.

    Wrong documents that are as similar as the right one precede it.

    Args:
        rows: The queries' vectors, (queries, width); sparse ones too.
        columns: The documents' vectors, (documents, width).
        right: Each query's right documents.
    """
    ranks, first = np.zeros(len(right), np.int64), np.zeros(len(right), np.int64)
    for start in range(0, len(right), _ROWS):
        product = rows[start : start + _ROWS] @ columns.T
        similarities = np.asarray(product.toarray() if hasattr(product, "toarray") else product)
        for row, scores in enumerate(similarities, start):
            own = scores[right[row]].max()
            ranks[row] = 1 + (np.delete(scores, right[row]) >= own).sum()
            first[row] = scores.argmax()
    return ranks, first


def summarise_ranks(ranks: NDArray[np.int64]) -> dict[str, float]:
    """Return `recall_at_5` and `mrr` of `rank_right`'s ranks."""
    return {RECALL: float((ranks <= 5).mean()), MRR: float((1 / ranks).mean())}


def embed_by_words(questions: Sequence[str], answers: Sequence[str]) -> tuple[Any, Any]:
    """Return normalised sparse rows of questions and of answers: words weighted by their rarity among the answers.

    Args:
        questions: Texts.
        answers: Texts; at least one has a word.
    """
    with require_extra("scikit-learn", "train"):
        from sklearn.feature_extraction.text import TfidfVectorizer
    # One letter is a word too: else answers such as "I" have none.
    words = TfidfVectorizer(token_pattern=r"\w+", dtype=np.float32)
    columns = words.fit_transform(answers)
    return words.transform(questions), columns
