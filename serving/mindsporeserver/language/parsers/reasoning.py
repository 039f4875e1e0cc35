"""Reasoning before an answer, between `<think>` and `</think>`."""

from __future__ import annotations

from mindsporeserver.language.text import match_beginning

BEGIN, _END = "<think>", "</think>"


class ReasoningParser:
    """Separates an answer's reasoning from its content.

    Args:
        is_begun: Whether the prompt ends with `<think>`; else the answer has reasoning when it begins with it.
    """

    def __init__(self, *, is_begun: bool) -> None:
        self._held = ""
        self._is_begun, self._is_over = is_begun, False

    def push(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """Add a piece of the answer.

        Returns:
            Its parts of the reasoning and of the content.
        """
        if self._is_over:
            return "", text
        self._held += text
        if not self._is_begun:
            stripped = self._held.lstrip()
            if not is_last and BEGIN.startswith(stripped):
                return "", ""
            if not stripped.startswith(BEGIN):
                return "", self._finish()
            self._is_begun, self._held = True, stripped.removeprefix(BEGIN)
        reasoning, end, content = self._held.partition(_END)
        if end:
            self._held = content
            return reasoning, self._finish()
        keep = 0 if is_last else match_beginning(self._held, _END)
        reasoning = self._held[: len(self._held) - keep]
        self._held = self._held[len(reasoning) :]
        return reasoning, ""

    def _finish(self) -> str:
        self._is_over, content = True, self._held
        return content
