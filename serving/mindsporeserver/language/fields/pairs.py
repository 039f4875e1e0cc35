"""Requests that compare texts by their embeddings: score and rerank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.requests import MAX_INPUTS
from mindsporeserver.language.fields.values import check_text, read_list, read_number, read_text, refuse

# The first texts and the second ones, by vLLM's older and newer names.
SCORE_FIELDS = (("text_1", "text_2"), ("queries", "documents"))
RERANK_FIELDS = ("query", "documents", "top_n")


@dataclass(frozen=True)
class TextPairs:
    """Texts of which each first one is compared with a second one.

    Args:
        texts: All texts, each once, the first ones before the second ones.
        params: Each text's field in the request.
        pairs: Positions among the texts.
        top: Most results; 0 for all.
    """

    texts: Sequence[str]
    params: Sequence[str]
    pairs: Sequence[tuple[int, int]]
    top: int = 0


def parse_score(body: Mapping[str, Any]) -> TextPairs:
    """Read a score request: one first text for all second ones, or as many.

    Raises:
        LanguageError: A field is missing or invalid.
    """
    names = next((names for names in SCORE_FIELDS if any(body.get(name) is not None for name in names)), None)
    first, second = names or SCORE_FIELDS[0]
    queries, documents = (_read_texts(body.get(name), name) for name in (first, second))
    if len(queries) not in (1, len(documents)):
        raise LanguageError(f"{first}: must be one text or {len(documents)}, as {second}, got {len(queries)}", first)
    numbers = range(len(documents))
    pairs = [(number if len(queries) > 1 else 0, len(queries) + number) for number in numbers]
    params = [name for name, texts in ((first, queries), (second, documents)) for _ in texts]
    return TextPairs([*queries, *documents], params, pairs)


def parse_rerank(body: Mapping[str, Any]) -> TextPairs:
    """Read a rerank request.

    Raises:
        LanguageError: A field is missing or invalid.
    """
    query, documents = read_text(body, "query"), _read_texts(body.get("documents"), "documents")
    top = read_number(body, "top_n", 0, 1 << 31, whole=True) or 0
    params = ["query", *("documents" for _ in documents)]
    return TextPairs([query, *documents], params, [(0, number) for number in range(1, len(documents) + 1)], top)


def _read_texts(value: Any, param: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refuse(param, "a text or a list of texts", value)
    items = read_list(value, param, MAX_INPUTS, "texts", 1)
    return [check_text(item, f"{param}[{index}]") for index, item in enumerate(items)]
