"""Reasoning before an answer: separated whatever the pieces, and left where there is none."""

from __future__ import annotations

import pytest

from mindsporeserver.language.parsers.reasoning import ReasoningParser


@pytest.mark.parametrize(
    ("is_begun", "text", "reasoning", "content"),
    [
        (False, "<think>\nWell.\n</think>\n\nYes.", "\nWell.\n", "\n\nYes."),
        (False, "\n<think>a</think>b", "a", "b"),
        (False, "<think></think>b", "", "b"),
        (False, "<think>a </thin b", "a </thin b", ""),
        (False, "<think>a</think>b</think><think>c", "a", "b</think><think>c"),
        (False, "<thinking>", "", "<thinking>"),
        (False, "<thin", "", "<thin"),
        (False, " Yes <think>a</think>", "", " Yes <think>a</think>"),
        (False, "", "", ""),
        (True, "a</think>b", "a", "b"),
        (True, "a", "a", ""),
        (True, "</think>b", "", "b"),
        (True, "<think>a</think>b", "<think>a", "b"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_is_separated(is_begun: bool, text: str, reasoning: str, content: str, size: int) -> None:
    parser, found = ReasoningParser(is_begun=is_begun), ["", ""]
    for start in range(0, max(len(text), 1), size):
        parts = parser.push(text[start : start + size], is_last=start + size >= len(text))
        found = [before + part for before, part in zip(found, parts, strict=True)]
    assert found == [reasoning, content]


def test_pieces_are_sent_when_they_are_certain() -> None:
    parser = ReasoningParser(is_begun=False)
    pieces = [parser.push(text, is_last=False) for text in ("<thi", "nk>a", "b</", "x", "</think", ">c", "</")]
    assert pieces == [("", ""), ("a", ""), ("b", ""), ("</x", ""), ("", ""), ("", "c"), ("", "</")]
