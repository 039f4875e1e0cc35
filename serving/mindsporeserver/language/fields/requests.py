"""Requests for chat completions, completions and embeddings."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.constraints import GUIDED, Constraint, parse_constraint
from mindsporeserver.language.fields.messages import (
    TEMPLATE_FIELDS,
    parse_effort,
    parse_messages,
    parse_tool_choice,
    parse_tools,
    parse_variables,
)
from mindsporeserver.language.fields.values import (
    check_text,
    describe,
    is_number,
    parse_ids,
    read_bool,
    read_list,
    read_number,
    read_text,
    refuse,
)

logger = logging.getLogger(__name__)
_MAX_CHOICES, _MAX_PROMPTS, _MAX_BIASES = 128, 128, 1024
# Texts of a request to an embedding model.
MAX_INPUTS = 2048
_MAX_STOPS, _MAX_STOP_LENGTH = 16, 256
_MAX_TOP_LOGPROBS = 20
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
_COMMON |= {f"guided_{name}" for name in GUIDED}
CHAT_FIELDS = _COMMON | TEMPLATE_FIELDS | {"max_completion_tokens", "top_logprobs", "tool_choice"}
CHAT_FIELDS |= {"parallel_tool_calls", "include_reasoning", "echo"}
COMPLETION_FIELDS = _COMMON | {"prompt", "echo"}
EMBEDDING_FIELDS = frozenset({"model", "input", "encoding_format", "dimensions", "user"})
# Unsupported fields (the protocol's and vLLM's) that change the answer, with the values that change nothing:
# 1 equals True, and None always is one.
UNSUPPORTED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "prediction", "web_search_options", "verbosity"), ()),
    **dict.fromkeys(("chat_template", "allowed_token_ids", "truncate_prompt_tokens", "prompt_embeds"), ()),
    **dict.fromkeys(("guided_whitespace_pattern", "structural_tag", "thinking_token_budget"), ()),
    **dict.fromkeys(("logprob_token_ids", "repetition_detection"), ()),
    **dict.fromkeys(("functions", "bad_words", "documents", "logits_processors"), ([],)),
    **dict.fromkeys(("store", "use_beam_search", "include_stop_str_in_output"), (False,)),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("return_prompt_text", "watermarking"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "best_of"), (True,)),
    "prompt_logprobs": (0,),
    "suffix": ("",),
    "modalities": (["text"],),
    "function_call": ("none",),
}


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
        effort: The chat template's `reasoning_effort`; None for the template's own value.
        includes_reasoning: Whether a separated reasoning is sent.
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
    effort: str | None = None
    includes_reasoning: bool = True


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
    if read_bool(body, "echo"):
        raise LanguageError("echo: is not supported for chats by this server, got True", "echo")
    continues = read_bool(body, "continue_final_message")
    generation_prompt = read_bool(body, "add_generation_prompt", default=True)
    if continues and generation_prompt:
        message = "continue_final_message: needs add_generation_prompt: false"
        raise LanguageError(message, "continue_final_message")
    count = read_number(body, "top_logprobs", 0, _MAX_TOP_LOGPROBS, whole=True)
    has_logprobs = read_bool(body, "logprobs")
    if count is not None and not has_logprobs:
        raise LanguageError("top_logprobs: needs logprobs: true", "top_logprobs")
    tools = parse_tools(body.get("tools"))
    choice = parse_tool_choice(body.get("tool_choice"), tools)
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
        messages=parse_messages(body.get("messages")),
        tools=tools,
        tool_choice=choice,
        parallel_calls=read_bool(body, "parallel_tool_calls", default=True),
        add_special_tokens=read_bool(body, "add_special_tokens"),
        generation_prompt=generation_prompt,
        continues=continues,
        variables=parse_variables(body.get("chat_template_kwargs")),
        effort=parse_effort(body.get("reasoning_effort")),
        includes_reasoning=read_bool(body, "include_reasoning", default=True),
    )


def parse_completion(body: Mapping[str, Any], vocabulary_size: int, defaults: Mapping[str, Any]) -> GenerationRequest:
    """Read a completion request, as `parse_chat` does.

    Raises:
        LanguageError: A field is invalid or not supported.
    """
    _check_names(body, COMPLETION_FIELDS)
    echo = read_bool(body, "echo")
    max_tokens = _read_max_tokens(body, "max_tokens", 0 if echo else 1, default=16)
    return GenerationRequest(
        **_parse_common(body, vocabulary_size, defaults),
        max_tokens=max_tokens,
        max_tokens_field="max_tokens",
        logprobs=read_number(body, "logprobs", 0, _MAX_TOP_LOGPROBS, whole=True),
        prompts=parse_prompts(body.get("prompt"), vocabulary_size, "prompt"),
        echo=echo,
        add_special_tokens=read_bool(body, "add_special_tokens", default=True),
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
    is_base64 = parse_embedding_format(body, width, EMBEDDING_FIELDS)
    return parse_prompts(body.get("input"), vocabulary_size, "input", MAX_INPUTS), is_base64


def parse_embedding_format(body: Mapping[str, Any], width: int, supported: frozenset[str]) -> bool:
    """Return whether an embedding request's embeddings are sent as base64.

    Args:
        body: The JSON object.
        width: The embedding's size.
        supported: The fields that are read.

    Raises:
        LanguageError: A field is invalid or not supported.
    """
    _check_names(body, supported)
    encoding = body.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise refuse("encoding_format", "float or base64", encoding)
    if (dimensions := body.get("dimensions")) is not None and dimensions != width:
        raise refuse("dimensions", f"{width}, this model's", dimensions)
    return encoding == "base64"


def parse_prompts(
    value: Any, vocabulary_size: int, param: str, most: int = _MAX_PROMPTS
) -> tuple[str | tuple[int, ...], ...]:
    """Read texts or token IDs: one prompt or a list of at most `most`.

    Raises:
        LanguageError: It is neither, empty, or has token IDs outside the vocabulary.
    """
    if isinstance(value, str):
        return (check_text(value, param),)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return (parse_ids(value, vocabulary_size, param),)
    return tuple(
        check_text(item, f"{param}[{index}]")
        if isinstance(item, str)
        else parse_ids(item, vocabulary_size, f"{param}[{index}]")
        for index, item in enumerate(read_list(value, param, most, "texts or lists of token IDs", 1))
    )


def _parse_common(body: Mapping[str, Any], vocabulary_size: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: defaults[name] for name in _NUMBERS if defaults.get(name) is not None}
    for name, (least, most, is_integer) in _NUMBERS.items():
        if (number := read_number(body, name, least, most, whole=is_integer)) is not None:
            numbers[name] = number
    if numbers.get("top_p") == 0:
        raise refuse("top_p", "a number > 0 and ≤ 1", 0)
    numbers["top_k"] = max(0, numbers.get("top_k", 0))
    numbers["min_tokens"] = read_number(body, "min_tokens", 0, math.inf, whole=True) or 0
    bias = _parse_bias(body.get("logit_bias"), vocabulary_size)
    is_stream = read_bool(body, "stream")
    return {
        "model": read_text(body, "model"),
        "sampling": SamplingOptions(**numbers, logit_bias=bias),
        "stop": _parse_stop(body.get("stop")),
        "choices": read_number(body, "n", 1, _MAX_CHOICES, whole=True) or 1,
        "is_stream": is_stream,
        "include_usage": _parse_stream_options(body.get("stream_options"), is_stream),
        "ignore_eos": read_bool(body, "ignore_eos"),
        "constraint": parse_constraint(body),
        "stop_ids": _parse_stop_ids(body.get("stop_token_ids"), vocabulary_size),
    }


def _check_names(body: Mapping[str, Any], supported: frozenset[str]) -> None:
    for name, neutral in UNSUPPORTED_FIELDS.items():
        if (value := body.get(name)) is not None and value not in neutral:
            raise LanguageError(f"{name}: is not supported by this server, got {describe(value)}", name)
    if unknown := [shorten_text(name, 64) for name in body if name not in supported and name not in UNSUPPORTED_FIELDS]:
        logger.info("unknown request fields are ignored: %s", shorten_text(", ".join(sorted(unknown)), 500))


def _read_max_tokens(body: Mapping[str, Any], name: str, least: int, default: int | None = None) -> Any:
    value = read_number(body, name, least, math.inf, whole=True)
    value = default if value is None else value
    # min_tokens is checked with the other fields.
    fewest = body.get("min_tokens")
    if value is not None and isinstance(fewest, int) and fewest > value:
        raise refuse("min_tokens", f"at most {value}, {name}", fewest)
    return value


def _parse_bias(value: Any, vocabulary_size: int) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_BIASES:
        raise refuse("logit_bias", f"an object with at most {_MAX_BIASES} token IDs", value)
    bias = {}
    for key, number in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocabulary_size):
            raise refuse("logit_bias", f"by token IDs from 0 to {vocabulary_size - 1}", key)
        if not is_number(number, -100, 100):
            raise refuse("logit_bias", "from -100 to 100", number)
        bias[int(key)] = float(number)
    return bias


def _parse_stop(value: Any) -> tuple[str, ...]:
    texts = (
        [] if value is None else [value] if isinstance(value, str) else read_list(value, "stop", _MAX_STOPS, "texts")
    )
    for text in texts:
        if not 0 < len(check_text(text, "stop")) <= _MAX_STOP_LENGTH:
            raise refuse("stop", f"texts of 1 to {_MAX_STOP_LENGTH} characters", text)
    return tuple(texts)


def _parse_stream_options(value: Any, is_stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict) or not is_stream:
        raise refuse("stream_options", "an object, and needs stream: true", value)
    return read_bool(value, "include_usage")


def _parse_stop_ids(value: Any, vocabulary_size: int) -> tuple[int, ...]:
    if value is None or value == []:
        return ()
    return parse_ids(read_list(value, "stop_token_ids", _MAX_BIASES, "token IDs"), vocabulary_size, "stop_token_ids")
