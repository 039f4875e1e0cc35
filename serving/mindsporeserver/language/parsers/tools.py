"""Tool calls in an answer's text, in the forms of Hermes and Qwen, and of Llama 3."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from mindsporeserver.language.fields.constraints import Constraint, encode_schema
from mindsporeserver.language.text import match_beginning

_BEGIN, _END = "<tool_call>", "</tool_call>"


def build_constraint(tools: Sequence[Mapping[str, Any]], choice: str, arguments: str) -> Constraint | None:
    """Return the constraint of a call that `tool_choice` requires; None when it requires none.

    Args:
        tools: The request's tools.
        choice: `required` or `function:NAME`.
        arguments: The arguments' key in the template's form.
    """
    name = choice.removeprefix("function:") if choice.startswith("function:") else None
    if name is None and choice != "required":
        return None
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                arguments: tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for tool in tools
        if name is None or tool["function"]["name"] == name
    ]
    return Constraint("json", encode_schema(calls[0] if len(calls) == 1 else {"anyOf": calls}, "tools"), "tools")


def get_arguments_key(template: str) -> str:
    """Return the key of a call's arguments in a chat template's form."""
    return "parameters" if _BEGIN not in template and '"parameters"' in template else "arguments"


class ToolParser:
    """Separates an answer's text from the tool calls.

    Args:
        names: The tools' names.
        most: Most calls that are returned; None for all.
    """

    def __init__(self, names: Sequence[str], most: int | None = None) -> None:
        self._names = frozenset(names)
        self._most = most
        self._held = ""
        self._is_call = False

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[dict[str, Any]]]:
        """Add a piece of the answer.

        Returns:
            The text that is no part of a call, and at the answer's end the calls.
        """
        self._held += text
        if not self._is_call:
            stripped = self._held.lstrip()
            # Llama 3 answers with the bare object; text before Hermes' tag is an answer of its own.
            at = 0 if stripped.startswith("{") else self._held.find(_BEGIN)
            self._is_call = at >= 0
            keep = at if at >= 0 else len(self._held) - match_beginning(self._held, _BEGIN)
            if not is_last and not stripped:
                keep = 0
            text, self._held = self._held[:keep], self._held[keep:]
        else:
            text = ""
        if not is_last:
            return text, []
        calls = self._parse() if self._is_call else []
        return (text, calls) if calls else (text + self._held, [])

    def _parse(self) -> list[dict[str, Any]]:
        calls, rest = [], self._held.strip()
        decoder = json.JSONDecoder()
        while rest:
            try:
                value, end = decoder.raw_decode(rest := rest.removeprefix(_BEGIN).lstrip())
            except (ValueError, RecursionError):
                return []
            if not isinstance(value, dict) or value.get("name") not in self._names:
                return []
            arguments = value.get("arguments", value.get("parameters", {}))
            function = {
                "name": value["name"],
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
            }
            calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
            rest = rest[end:].lstrip().removeprefix(_END).lstrip("; \n")
        return calls[: self._most]
