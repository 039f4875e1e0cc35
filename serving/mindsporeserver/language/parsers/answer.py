"""Parsers of one answer's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindsporeserver.language.parsers.reasoning import ReasoningParser
from mindsporeserver.language.parsers.tools import ToolParser


@dataclass(frozen=True)
class AnswerParsers:
    """What divides one answer's text.

    Args:
        reasoning: Separates the reasoning; None to leave it in the content.
        tools: Separates tool calls; None without tools.
    """

    reasoning: ReasoningParser | None = None
    tools: ToolParser | None = None

    def push(self, text: str, *, is_last: bool) -> tuple[str, str, list[dict[str, Any]]]:
        """Add a piece of the answer.

        Returns:
            Its parts of the reasoning and of the content, and at the answer's end the tool calls.
        """
        reasoning = ""
        calls: list[dict[str, Any]] = []
        if self.reasoning is not None:
            reasoning, text = self.reasoning.push(text, is_last=is_last)
        if self.tools is not None:
            text, calls = self.tools.push(text, is_last=is_last)
        return reasoning, text, calls
