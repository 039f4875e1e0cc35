"""The request fields of the OpenAI protocol, each checked; an error names the field as `param`."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError

logger = logging.getLogger(__name__)

_MAX_MESSAGES, _MAX_CHOICES, _MAX_PROMPTS, _MAX_TOOLS, _MAX_BIASES = 4096, 128, 128, 128, 1024
_MAX_INPUTS, _MAX_VARIABLES = 2048, 64
_MAX_STOPS, _MAX_STOP_LENGTH = 16, 256
_MAX_TOP_LOGPROBS = 20
_MAX_SCHEMA_BYTES = 64 << 10
# The conversion from llama.cpp's form takes 1 s for 40 KiB.
_MAX_GRAMMAR = 16 << 10
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = ("system", "developer", "user", "assistant", "tool")
# Least and greatest value, and whether it must be an integer.
_NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "temperature": (0, 2, False),
    "top_p": (0, 1, False),
    "top_k": (-1, 1 << 31, True),
    "min_p": (0, 1, False),
    "presence_penalty": (-2, 2, False),
    "frequency_penalty": (-2, 2, False),
    "repetition_penalty": (1e-3, 10, False),
    "seed": (-(1 << 63), (1 << 63) - 1, True),
}
_COMMON = frozenset({*_NUMBERS, "model", "max_tokens", "logit_bias", "stop", "n", "logprobs", "stream"})
_COMMON |= {"stream_options", "ignore_eos", "user", "response_format", "structured_outputs"}
_COMMON |= {"stop_token_ids", "min_tokens", "add_special_tokens"}
_GUIDED = ("json", "regex", "choice", "grammar")
_COMMON |= {f"guided_{name}" for name in _GUIDED}
# How messages become a prompt; POST tokenize has these too.
TEMPLATE_FIELDS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
TEMPLATE_FIELDS |= {"chat_template_kwargs", "add_special_tokens"}
CHAT_FIELDS = (
    _COMMON | TEMPLATE_FIELDS | {"max_completion_tokens", "top_logprobs", "tool_choice", "parallel_tool_calls"}
)
COMPLETION_FIELDS = _COMMON | {"prompt", "echo"}
_EMBEDDING = frozenset({"model", "input", "encoding_format", "dimensions", "user"})
# Unsupported fields (the protocol's and vLLM's) that change the answer, with the values that change nothing:
# 1 equals True, and None always is one.
UNSUPPORTED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "prediction", "web_search_options", "reasoning_effort", "verbosity"), ()),
    **dict.fromkeys(("chat_template", "allowed_token_ids", "truncate_prompt_tokens", "prompt_embeds"), ()),
    **dict.fromkeys(("guided_whitespace_pattern", "structural_tag", "thinking_token_budget"), ()),
    **dict.fromkeys(("functions", "bad_words", "documents", "logits_processors"), ([],)),
    **dict.fromkeys(("store", "use_beam_search", "include_stop_str_in_output"), (False,)),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "best_of"), (True,)),
    "prompt_logprobs": (0,),
    "suffix": ("",),
    "modalities": (["text"],),
    "function_call": ("none",),
}
# Keys of structured_outputs beside the constraints, as above.
_STRUCTURE_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("structural_tag", "whitespace_pattern"), ()),
    **dict.fromkeys(("disable_fallback", "disable_any_whitespace"), (False, True)),
    "disable_additional_properties": (False,),
}
# Variables that the request's own fields set.
_TEMPLATE_VARIABLES = frozenset({*TEMPLATE_FIELDS, "chat_template", "tokenize"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Constraint:
    """What an answer must match.

    Args:
        kind: json for a JSON schema, regex, or grammar for one in Lark's or llama.cpp's form.
        text: The schema, expression or grammar.
        param: The request's field.
    """

    kind: Literal["json", "regex", "grammar"]
    text: str
    param: str


@dataclass(frozen=True)
class SamplingOptions:
    """How a token is chosen from the logits.

    Args:
        temperature: 0 for the most likely token.
        top_p: Least probability of the most likely tokens that are kept; 1 for all.
        top_k: Count of the most likely tokens that are kept; 0 for all.
        min_p: Least probability of a kept token, relative to the most likely one.
        presence_penalty: Subtracted from the logit of each generated token.
        frequency_penalty: Subtracted as often as the token was generated.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt and answer.
        logit_bias: Added to logits, by token ID.
        seed: Seed of the random generator; None for a random one.
        min_tokens: Least tokens before an end.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    min_tokens: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """A request for completions or chat completions.

    Args:
        model: The model's name.
        sampling: See `SamplingOptions`.
        max_tokens: Most tokens of an answer; None for the rest of the context.
        max_tokens_field: The field that `max_tokens` comes from.
        stop: Texts that end an answer.
        choices: Answers per prompt.
        logprobs: Alternatives per token in `logprobs`; None without logprobs.
        is_stream: Whether the answer is sent as server-sent events.
        include_usage: Whether a stream's last event has the token counts.
        ignore_eos: Whether an end-of-sequence token does not end the answer.
        constraint: What the answer must match; None without one.
        stop_ids: Tokens that end an answer, beside the model's own.
        add_special_tokens: Whether the tokenizer adds the special tokens to a text.
        prompts: For completions, texts or token IDs.
        echo: For completions, whether the answer begins with the prompt.
        messages: For chat completions, in the form that chat templates read.
        tools: Tool definitions, in the protocol's form.
        tool_choice: none, auto, required, or a tool's name.
        parallel_calls: Whether an answer may have several tool calls.
        generation_prompt: Whether the prompt ends with the beginning of an assistant's message.
        continues: Whether the answer continues the last message.
        variables: Further variables of the chat template.
    """

    model: str
    sampling: SamplingOptions
    max_tokens: int | None
    max_tokens_field: str
    stop: tuple[str, ...]
    choices: int
    logprobs: int | None
    is_stream: bool
    include_usage: bool
    ignore_eos: bool
    constraint: Constraint | None
    stop_ids: tuple[int, ...]
    add_special_tokens: bool
    prompts: tuple[str | tuple[int, ...], ...] = ()
    echo: bool = False
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "none"
    parallel_calls: bool = True
    generation_prompt: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return a request's JSON object; NaN and Infinity are read, so that the error can name their field.

    Raises:
        LanguageError: The body is no JSON object, or a text in it is no valid Unicode.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise LanguageError(f"body: not valid JSON: {error}") from None
        # orjson refuses lone surrogates, so only these bodies can have them.
        _check_surrogates(value)
    if not isinstance(value, dict):
        raise LanguageError(f"body: must be a JSON object, got {type(value).__name__}")
    return value


def parse_chat(body: Mapping[str, Any], vocabulary_size: int, defaults: Mapping[str, Any]) -> GenerationRequest:
    """Read a chat completion request.

    Args:
        body: The JSON object.
        vocabulary_size: Bound of token IDs.
        defaults: The model's own sampling options, by field.

    Raises:
        LanguageError: A field is invalid or not supported.
    """
    _check_names(body, CHAT_FIELDS)
    continues = _read_bool(body, "continue_final_message")
    generation_prompt = _read_bool(body, "add_generation_prompt", default=True)
    if continues and generation_prompt:
        message = "continue_final_message: needs add_generation_prompt: false"
        raise LanguageError(message, "continue_final_message")
    count = _read_number(body, "top_logprobs", 0, _MAX_TOP_LOGPROBS, whole=True)
    has_logprobs = _read_bool(body, "logprobs")
    if count is not None and not has_logprobs:
        raise LanguageError("top_logprobs: needs logprobs: true", "top_logprobs")
    tools = _parse_tools(body.get("tools"))
    choice = _parse_tool_choice(body.get("tool_choice"), tools)
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    common = _parse_common(body, vocabulary_size, defaults)
    constraint: Constraint | None = common["constraint"]
    if choice not in ("none", "auto") and constraint is not None and not constraint.param.startswith("response_format"):
        message = f"{constraint.param}: is not possible with a required tool call"
        raise LanguageError(message, constraint.param)
    return GenerationRequest(
        **common,
        max_tokens=_read_max_tokens(body, name, 1),
        max_tokens_field=name,
        logprobs=(count or 0) if has_logprobs else None,
        messages=_parse_messages(body.get("messages")),
        tools=tools,
        tool_choice=choice,
        parallel_calls=_read_bool(body, "parallel_tool_calls", default=True),
        add_special_tokens=_read_bool(body, "add_special_tokens"),
        generation_prompt=generation_prompt,
        continues=continues,
        variables=_parse_variables(body.get("chat_template_kwargs")),
    )


def parse_completion(body: Mapping[str, Any], vocabulary_size: int, defaults: Mapping[str, Any]) -> GenerationRequest:
    """Read a completion request, as `parse_chat` does.

    Raises:
        LanguageError: A field is invalid or not supported.
    """
    _check_names(body, COMPLETION_FIELDS)
    echo = _read_bool(body, "echo")
    max_tokens = _read_max_tokens(body, "max_tokens", 0 if echo else 1, default=16)
    return GenerationRequest(
        **_parse_common(body, vocabulary_size, defaults),
        max_tokens=max_tokens,
        max_tokens_field="max_tokens",
        logprobs=_read_number(body, "logprobs", 0, _MAX_TOP_LOGPROBS, whole=True),
        prompts=parse_prompts(body.get("prompt"), vocabulary_size, "prompt"),
        echo=echo,
        add_special_tokens=_read_bool(body, "add_special_tokens", default=True),
    )


def parse_embedding(
    body: Mapping[str, Any], vocabulary_size: int, width: int
) -> tuple[tuple[str | tuple[int, ...], ...], bool]:
    """Return an embedding request's texts or token IDs, and whether embeddings are sent as base64.

    Args:
        body: The JSON object.
        vocabulary_size: Bound of token IDs.
        width: The embedding's size.

    Raises:
        LanguageError: A field is invalid or not supported.
    """
    _check_names(body, _EMBEDDING)
    encoding = body.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise _refuse("encoding_format", "float or base64", encoding)
    if (dimensions := body.get("dimensions")) is not None and dimensions != width:
        raise _refuse("dimensions", f"{width}, this model's", dimensions)
    return parse_prompts(body.get("input"), vocabulary_size, "input", _MAX_INPUTS), encoding == "base64"


def parse_prompts(
    value: Any, vocabulary_size: int, param: str, most: int = _MAX_PROMPTS
) -> tuple[str | tuple[int, ...], ...]:
    """Read texts or token IDs: one prompt or a list of at most `most`.

    Raises:
        LanguageError: It is neither, empty, or has token IDs outside the vocabulary.
    """
    if isinstance(value, str):
        return (_check_text(value, param),)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return (_parse_ids(value, vocabulary_size, param),)
    return tuple(
        _check_text(item, f"{param}[{index}]")
        if isinstance(item, str)
        else _parse_ids(item, vocabulary_size, f"{param}[{index}]")
        for index, item in enumerate(_read_list(value, param, most, "texts or lists of token IDs", 1))
    )


def read_text(body: Mapping[str, Any], name: str) -> str:
    """Return a required text field.

    Raises:
        LanguageError: It is missing or no text.
    """
    return _check_text(body.get(name), name)


def _parse_common(body: Mapping[str, Any], vocabulary_size: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: defaults[name] for name in _NUMBERS if defaults.get(name) is not None}
    for name, (least, most, is_integer) in _NUMBERS.items():
        if (number := _read_number(body, name, least, most, whole=is_integer)) is not None:
            numbers[name] = number
    if numbers.get("top_p") == 0:
        raise _refuse("top_p", "a number > 0 and ≤ 1", 0)
    numbers["top_k"] = max(0, numbers.get("top_k", 0))
    numbers["min_tokens"] = _read_number(body, "min_tokens", 0, math.inf, whole=True) or 0
    bias = _parse_bias(body.get("logit_bias"), vocabulary_size)
    is_stream = _read_bool(body, "stream")
    return {
        "model": read_text(body, "model"),
        "sampling": SamplingOptions(**numbers, logit_bias=bias),
        "stop": _parse_stop(body.get("stop")),
        "choices": _read_number(body, "n", 1, _MAX_CHOICES, whole=True) or 1,
        "is_stream": is_stream,
        "include_usage": _parse_stream_options(body.get("stream_options"), is_stream),
        "ignore_eos": _read_bool(body, "ignore_eos"),
        "constraint": _parse_constraint(body),
        "stop_ids": _parse_stop_ids(body.get("stop_token_ids"), vocabulary_size),
    }


def _check_names(body: Mapping[str, Any], supported: frozenset[str]) -> None:
    for name, neutral in UNSUPPORTED_FIELDS.items():
        if (value := body.get(name)) is not None and value not in neutral:
            raise LanguageError(f"{name}: is not supported by this server, got {_describe(value)}", name)
    if unknown := [shorten_text(name, 64) for name in body if name not in supported and name not in UNSUPPORTED_FIELDS]:
        logger.info("unknown request fields are ignored: %s", shorten_text(", ".join(sorted(unknown)), 500))


def _read_number(body: Mapping[str, Any], name: str, least: float, most: float, *, whole: bool = False) -> Any:
    value = body.get(name)
    if value is not None and not _is_number(value, least, most, whole=whole):
        bounds = f"≥ {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise _refuse(name, f"{'an integer' if whole else 'a number'} {bounds}", value)
    return value


def _read_max_tokens(body: Mapping[str, Any], name: str, least: int, default: int | None = None) -> Any:
    value = _read_number(body, name, least, math.inf, whole=True)
    value = default if value is None else value
    # min_tokens is checked with the other fields.
    fewest = body.get("min_tokens")
    if value is not None and isinstance(fewest, int) and fewest > value:
        raise _refuse("min_tokens", f"at most {value}, {name}", fewest)
    return value


def _is_number(value: Any, least: float, most: float, *, whole: bool = False) -> bool:
    # JSON's true is an int to Python; NaN compares as false.
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and least <= value <= most


def _read_list(value: Any, param: str, most: int, what: str, least: int = 0) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise _refuse(param, f"a list of {least} to {most} {what}", value)
    return value


def _read_bool(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _refuse(name, "true or false", value)
    return default if value is None else value


def _check_text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise _refuse(param, "a text", value)
    return value


def _check_surrogates(body: Any) -> None:
    """Raise for the first text with a lone surrogate, which can be sent to no tokenizer; the path is the `param`."""
    waiting: list[tuple[str, Any]] = [("", body)]
    while waiting:
        param, value = waiting.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                raise LanguageError(f"{param or 'body'}: must be valid Unicode, got a lone surrogate", param or None)
        elif isinstance(value, list):
            waiting += reversed([(f"{param}[{index}]", item) for index, item in enumerate(value)])
        elif isinstance(value, dict):
            # A key is named by its object.
            waiting += reversed(
                [pair for key, item in value.items() for pair in ((param, key), (_join(param, key), item))]
            )


def _join(param: str, key: str) -> str:
    return f"{param}.{shorten_text(key, 64)}" if param else shorten_text(key, 64)


def _parse_ids(value: Any, vocabulary_size: int, param: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise _refuse(param, "a text or a list of token IDs", value)
    for item in value:
        if not _is_number(item, 0, vocabulary_size - 1, whole=True):
            raise _refuse(param, f"token IDs from 0 to {vocabulary_size - 1}", item)
    return tuple(value)


def _parse_bias(value: Any, vocabulary_size: int) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_BIASES:
        raise _refuse("logit_bias", f"an object with at most {_MAX_BIASES} token IDs", value)
    bias = {}
    for key, number in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocabulary_size):
            raise _refuse("logit_bias", f"by token IDs from 0 to {vocabulary_size - 1}", key)
        if not _is_number(number, -100, 100):
            raise _refuse("logit_bias", "from -100 to 100", number)
        bias[int(key)] = float(number)
    return bias


def _parse_stop(value: Any) -> tuple[str, ...]:
    texts = (
        [] if value is None else [value] if isinstance(value, str) else _read_list(value, "stop", _MAX_STOPS, "texts")
    )
    for text in texts:
        if not 0 < len(_check_text(text, "stop")) <= _MAX_STOP_LENGTH:
            raise _refuse("stop", f"texts of 1 to {_MAX_STOP_LENGTH} characters", text)
    return tuple(texts)


def _parse_stream_options(value: Any, is_stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict) or not is_stream:
        raise _refuse("stream_options", "an object, and needs stream: true", value)
    return _read_bool(value, "include_usage")


def _parse_stop_ids(value: Any, vocabulary_size: int) -> tuple[int, ...]:
    if value is None or value == []:
        return ()
    return _parse_ids(_read_list(value, "stop_token_ids", _MAX_BIASES, "token IDs"), vocabulary_size, "stop_token_ids")


def _parse_variables(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_VARIABLES:
        raise _refuse("chat_template_kwargs", f"an object with at most {_MAX_VARIABLES} variables", value)
    for name in value:
        param = _join("chat_template_kwargs", name)
        if name in _TEMPLATE_VARIABLES:
            raise LanguageError(f"{param}: is no variable of the template; send it as a field of the request", param)
        if not _IDENTIFIER.fullmatch(name):
            raise _refuse("chat_template_kwargs", "by names of variables", name)
    return value


def _parse_constraint(body: Mapping[str, Any]) -> Constraint | None:
    found = [_parse_response_format(body.get("response_format"))]
    found += [_CONSTRAINTS[key](value, param) for param, key, value in _list_constraints(body)]
    constraints = [item for item in found if item is not None]
    if len(constraints) > 1:
        first, second, *_ = (item.param for item in constraints)
        raise LanguageError(f"{second}: only one constraint is possible, got {first} too", second)
    return constraints[0] if constraints else None


def _list_constraints(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield vLLM's constraints: the field, the kind and the value."""
    for key in _GUIDED:
        if body.get(f"guided_{key}") is not None:
            yield f"guided_{key}", key, body[f"guided_{key}"]
    structured = body.get("structured_outputs")
    if structured is not None and not isinstance(structured, dict):
        raise _refuse("structured_outputs", "an object", structured)
    for key, value in (structured or {}).items():
        param = f"structured_outputs.{shorten_text(key, 64)}"
        if value is None:
            continue
        if key in _CONSTRAINTS:
            yield param, key, value
        elif value not in _STRUCTURE_OPTIONS.get(key, ()):
            raise LanguageError(f"{param}: is not supported by this server, got {_describe(value)}", param)


def _parse_response_format(value: Any) -> Constraint | None:
    kind = "text" if value is None else value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        # llama.cpp's clients send a schema here.
        return _parse_schema(value.get("schema", _OBJECT), "response_format.schema")
    if kind != "json_schema":
        raise _refuse("response_format.type", "text, json_object or json_schema", kind)
    described = value.get("json_schema")
    schema = described.get("schema", {}) if isinstance(described, dict) else None
    return _parse_schema(schema, "response_format.json_schema.schema")


def _parse_schema(value: Any, param: str) -> Constraint:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise LanguageError(f"{param}: not valid JSON: {error}", param) from None
    return Constraint("json", encode_schema(value, param), param)


def _parse_regex(value: Any, param: str) -> Constraint:
    return Constraint("regex", _check_size(_check_text(value, param), param, _MAX_SCHEMA_BYTES), param)


def _parse_grammar(value: Any, param: str) -> Constraint:
    return Constraint("grammar", _check_size(_check_text(value, param), param, _MAX_GRAMMAR), param)


def _parse_choice(value: Any, param: str) -> Constraint:
    texts = [_check_text(item, param) for item in _read_list(value, param, _MAX_BIASES, "texts", 1)]
    if "" in texts:
        raise _refuse(param, "texts of at least one character", "")
    # A literal of Lark is one of JSON.
    grammar = "start: " + " | ".join(map(json.dumps, texts))
    return Constraint("grammar", _check_size(grammar, param, _MAX_SCHEMA_BYTES), param)


def _parse_object(value: Any, param: str) -> Constraint | None:
    if not isinstance(value, bool):
        raise _refuse(param, "true or false", value)
    return _parse_schema(_OBJECT, param) if value else None


_OBJECT: Mapping[str, Any] = {"type": "object"}
# By the key of structured_outputs, and after `guided_`.
_CONSTRAINTS: Mapping[str, Callable[[Any, str], Constraint | None]] = {
    "json": _parse_schema,
    "regex": _parse_regex,
    "choice": _parse_choice,
    "grammar": _parse_grammar,
    "json_object": _parse_object,
}


def _check_size(text: str, param: str, most: int) -> str:
    if len(text) > most:
        raise _refuse(param, f"at most {most} characters", text)
    return text


def encode_schema(schema: Any, param: str) -> str:
    """Return a JSON schema as text.

    Raises:
        LanguageError: It is no object or too large.
    """
    if not isinstance(schema, dict):
        raise _refuse(param, "a JSON schema, an object", schema)
    try:
        text = orjson.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise LanguageError(f"{param}: is no valid JSON: {error}", param) from None
    if len(text) > _MAX_SCHEMA_BYTES:
        raise _refuse(param, f"a schema of at most {_MAX_SCHEMA_BYTES} bytes", text.decode())
    return text.decode()


def _parse_messages(value: Any) -> tuple[dict[str, Any], ...]:
    messages = _read_list(value, "messages", _MAX_MESSAGES, "messages", 1)
    return tuple(_parse_message(item, f"messages[{index}]") for index, item in enumerate(messages))


def _parse_message(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(param, "an object", value)
    role = value.get("role")
    if role not in _ROLES:
        raise _refuse(f"{param}.role", f"one of {', '.join(_ROLES)}", role)
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = value.get("tool_calls") if role == "assistant" else None
    content = value.get("content")
    message["content"] = "" if content is None and calls else _parse_content(content, f"{param}.content")
    for name in ("name", "tool_call_id"):
        if value.get(name) is not None:
            message[name] = _check_text(value[name], f"{param}.{name}")
    if calls:
        message["tool_calls"] = _parse_calls(calls, f"{param}.tool_calls")
    return message


def _parse_content(value: Any, param: str) -> str:
    if isinstance(value, str):
        return _check_text(value, param)
    texts = []
    for index, part in enumerate(_read_list(value, param, _MAX_MESSAGES, "text parts, or a text", 1)):
        kind = part.get("type") if isinstance(part, dict) else part
        if kind != "text":
            raise _refuse(f"{param}[{index}].type", "text", kind)
        texts.append(_check_text(part.get("text"), f"{param}[{index}].text"))
    return "".join(texts)


def _parse_calls(value: Any, param: str) -> list[dict[str, Any]]:
    calls = []
    for index, item in enumerate(_read_list(value, param, _MAX_TOOLS, "calls")):
        function = item.get("function") if isinstance(item, dict) else None
        where = f"{param}[{index}].function"
        if not isinstance(function, dict):
            raise _refuse(where, "an object", function)
        name = _check_text(function.get("name"), f"{where}.name")
        # Chat templates write the arguments as JSON themselves.
        try:
            arguments = orjson.loads(_check_text(function.get("arguments"), f"{where}.arguments"))
        except orjson.JSONDecodeError as error:
            raise LanguageError(f"{where}.arguments: not valid JSON: {error}", f"{where}.arguments") from None
        calls.append({"id": item.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}})
    return calls


def _parse_tools(value: Any) -> tuple[dict[str, Any], ...]:
    tools = [] if value is None else _read_list(value, "tools", _MAX_TOOLS, "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise _refuse(f"tools[{index}]", "an object with type: function and an object function", tool)
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _refuse(f"tools[{index}].function.name", f"a text that matches {_NAME.pattern}", name)
        if function.get("parameters") is not None:
            encode_schema(function["parameters"], f"tools[{index}].function.parameters")
    return tuple(tools)


def _parse_tool_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    if value is None:
        return "auto" if tools else "none"
    names = [tool["function"]["name"] for tool in tools]
    if value in ("none", "auto", "required") and (tools or value == "none"):
        return str(value)
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        expected = "none, auto, required, or a function of tools" if tools else "none without tools"
        raise _refuse("tool_choice", f"{expected}", value)
    # A function may be named like a mode.
    return f"function:{name}"


def _refuse(param: str, expected: str, value: Any) -> LanguageError:
    return LanguageError(f"{param}: must be {expected}, got {_describe(value)}", param)


def _describe(value: Any) -> str:
    """Return a client's value for a message, shortened."""
    if isinstance(value, (list, dict, str)) and len(value) > 40:
        return f"a {type(value).__name__} of length {len(value)}"
    return shorten_text(repr(value), 80)
