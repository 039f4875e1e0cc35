"""The fields of a chat: messages, tools and the chat template's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.constraints import encode_schema
from mindsporeserver.language.fields.values import check_text, join_path, read_list, refuse

_MAX_MESSAGES, _MAX_TOOLS, _MAX_VARIABLES = 4096, 128, 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = ("system", "developer", "user", "assistant", "tool")
# How messages become a prompt; POST tokenize has these too.
TEMPLATE_FIELDS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
TEMPLATE_FIELDS |= {"chat_template_kwargs", "add_special_tokens"}
# Variables that the request's own fields set.
_TEMPLATE_VARIABLES = frozenset({*TEMPLATE_FIELDS, "chat_template", "tokenize"})
TEMPLATE_FIELDS |= {"reasoning_effort"}
# The field with the text, by a part's type.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def parse_variables(value: Any) -> Mapping[str, Any]:
    """Return the chat template's further variables."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_VARIABLES:
        raise refuse("chat_template_kwargs", f"an object with at most {_MAX_VARIABLES} variables", value)
    for name in value:
        param = join_path("chat_template_kwargs", name)
        if name in _TEMPLATE_VARIABLES:
            raise LanguageError(f"{param}: is no variable of the template; send it as a field of the request", param)
        if not _IDENTIFIER.fullmatch(name):
            raise refuse("chat_template_kwargs", "by names of variables", name)
    return value


def parse_effort(value: Any) -> str | None:
    """Return the chat template's `reasoning_effort`, None for the template's own value."""
    if value is not None and value not in _EFFORTS:
        raise refuse("reasoning_effort", f"one of {', '.join(_EFFORTS)}", value)
    return None if value is None else str(value)


def merge_variables(variables: Mapping[str, Any], effort: str | None, template: str) -> Mapping[str, Any]:
    """Return the chat template's further variables with `reasoning_effort` and, as vLLM sets it, `enable_thinking`.

    Args:
        variables: The request's `chat_template_kwargs`, which come first.
        effort: The request's `reasoning_effort`.
        template: The chat template.

    Raises:
        LanguageError: The template reads neither.
    """
    if effort is None:
        return variables
    own = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if not (own := {name: value for name, value in own.items() if name in template}):
        message = f"reasoning_effort: the model's chat template does not read it, got {effort!r}; omit it"
        raise LanguageError(message, "reasoning_effort")
    return {**own, **variables}


def parse_messages(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the messages in the form that chat templates read."""
    messages = read_list(value, "messages", _MAX_MESSAGES, "messages", 1)
    return tuple(_parse_message(item, f"messages[{index}]") for index, item in enumerate(messages))


def _parse_message(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(param, "an object", value)
    role = value.get("role")
    if role not in _ROLES:
        raise refuse(f"{param}.role", f"one of {', '.join(_ROLES)}", role)
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = value.get("tool_calls") if role == "assistant" else None
    content = value.get("content")
    # Clients send back an assistant's message with calls, a refusal or reasoning only.
    is_empty = content is None and role == "assistant"
    message["content"] = "" if is_empty else _parse_content(content, f"{param}.content")
    for name in ("reasoning", "reasoning_content") if role == "assistant" else ():
        if value.get(name) is not None:
            # Templates know it by either name.
            message["reasoning"] = message["reasoning_content"] = check_text(value[name], f"{param}.{name}")
    for name in ("name", "tool_call_id"):
        if value.get(name) is not None:
            message[name] = check_text(value[name], f"{param}.{name}")
    if calls:
        message["tool_calls"] = _parse_calls(calls, f"{param}.tool_calls")
    return message


def _parse_content(value: Any, param: str) -> str:
    if isinstance(value, str):
        return check_text(value, param)
    texts = []
    for index, part in enumerate(read_list(value, param, _MAX_MESSAGES, "text parts, or a text", 1)):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in _TEXT_PARTS:
            raise refuse(f"{param}[{index}].type", f"one of {', '.join(_TEXT_PARTS)}", kind)
        name = _TEXT_PARTS[kind]
        texts.append(check_text(part.get(name), f"{param}[{index}].{name}"))
    # As vLLM joins them for templates of plain texts.
    return "\n".join(texts)


def _parse_calls(value: Any, param: str) -> list[dict[str, Any]]:
    calls = []
    for index, item in enumerate(read_list(value, param, _MAX_TOOLS, "calls")):
        function = item.get("function") if isinstance(item, dict) else None
        where = f"{param}[{index}].function"
        if not isinstance(function, dict):
            raise refuse(where, "an object", function)
        name = check_text(function.get("name"), f"{where}.name")
        # Chat templates write the arguments as JSON themselves.
        try:
            arguments = orjson.loads(check_text(function.get("arguments"), f"{where}.arguments"))
        except orjson.JSONDecodeError as error:
            raise LanguageError(f"{where}.arguments: not valid JSON: {error}", f"{where}.arguments") from None
        calls.append({"id": item.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}})
    return calls


def parse_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the tool definitions, in the protocol's form."""
    tools = [] if value is None else read_list(value, "tools", _MAX_TOOLS, "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise refuse(f"tools[{index}]", "an object with type: function and an object function", tool)
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise refuse(f"tools[{index}].function.name", f"a text that matches {_NAME.pattern}", name)
        if function.get("parameters") is not None:
            encode_schema(function["parameters"], f"tools[{index}].function.parameters")
    return tuple(tools)


def parse_tool_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return none, auto, required, or a tool's name after `function:`."""
    if value is None:
        return "auto" if tools else "none"
    names = [tool["function"]["name"] for tool in tools]
    if value in ("none", "auto", "required") and (tools or value == "none"):
        return str(value)
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        expected = "none, auto, required, or a function of tools" if tools else "none without tools"
        raise refuse("tool_choice", f"{expected}", value)
    # A function may be named like a mode.
    return f"function:{name}"
