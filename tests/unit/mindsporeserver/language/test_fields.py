"""Every field of a request: accepted values, and the error's `param` for the others."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from mindsporeserver.language.errors import LanguageError, describe_error
from mindsporeserver.language.fields.constraints import Constraint
from mindsporeserver.language.fields.messages import merge_variables
from mindsporeserver.language.fields.requests import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    UNSUPPORTED_FIELDS,
    parse_chat,
    parse_completion,
)
from mindsporeserver.language.fields.values import parse_body

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}

PARAMETERS = "tools[0].function.parameters"

BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [USER] * 5000}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [USER, {"role": "narrator", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": math.inf}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": math.nan}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 1 << 64}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"100": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": math.nan}}, "logit_bias"),
    ({"stop": ["x"] * 10_000}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x" * 1000]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
    ({"response_format": "json"}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 70_000]}}}},
        "response_format.json_schema.schema",
    ),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]},
        "tools[0].function.parameters",
    ),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "set"}}}, "tool_choice"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"functions": [{}]}, "functions"),
    ({"best_of": 2}, "best_of"),
    ({"reasoning_effort": "most"}, "reasoning_effort"),
    ({"reasoning_effort": ["high"]}, "reasoning_effort"),
    ({"include_reasoning": "no"}, "include_reasoning"),
    ({"echo": True}, "echo"),
    ({"watermarking": True}, "watermarking"),
    ({"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]}, "messages[0].content[0].refusal"),
    ({"messages": [{"role": "assistant", "reasoning": 1}]}, "messages[0].reasoning"),
    ({"messages": [{"role": "user", "content": "x", "name": "\ud800"}]}, "messages[0].name"),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "description": "\udfff"}}]},
        "tools[0].function.description",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"a": {"\ud800": 1}}}}]},
        PARAMETERS + ".a",
    ),
    ({"stop": ["x", "\ud800"]}, "stop[1]"),
    ({"unknown": "\ud800"}, "unknown"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {f"a{number}": 1 for number in range(65)}}, "chat_template_kwargs"),
    ({"stop_token_ids": 2}, "stop_token_ids"),
    ({"stop_token_ids": [100]}, "stop_token_ids"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 1.5}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": "no"}, "add_generation_prompt"),
    ({"structured_outputs": []}, "structured_outputs"),
    ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": 1}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_regex": "a" * 70_000}, "guided_regex"),
    ({"guided_grammar": "a" * 20_000}, "guided_grammar"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_choice": ["a" * 70_000]}, "guided_choice"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
]
BAD_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [0, 100]}, "prompt"),
    ({"prompt": [0, True]}, "prompt"),
    ({"prompt": [[0], [-1]]}, "prompt[1]"),
    ({"prompt": ["a"] * 1000}, "prompt"),
    ({"suffix": "end"}, "suffix"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": "yes"}, "echo"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT, ids=str)
def test_chat_error_names_field(fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": "chat", "messages": [USER], **fields}).encode()
    with pytest.raises(LanguageError) as raised:
        parse_chat(parse_body(body), 100, {})
    assert (raised.value.param, raised.value.status) == (param, 400)
    assert len(raised.value.message) < 400
    assert describe_error(raised.value)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETION, ids=str)
def test_completion_error_names_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(LanguageError) as raised:
        parse_completion({"model": "chat", "prompt": "x", **fields}, 100, {})
    assert raised.value.param == param


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(LanguageError, match=r"^body: "):
        parse_body(body)


def test_fields_are_read() -> None:
    request = parse_chat(
        {
            "model": "chat",
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "3"},
            ],
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "top_k": -1,
            "seed": 3,
            "logit_bias": {"5": -100},
            "stop": "end",
            "logprobs": True,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "get"}},
        },
        100,
        {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2},
    )
    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[1]["content"] == "a\nb"
    assert request.messages[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (request.max_tokens, request.max_tokens_field) == (7, "max_completion_tokens")
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.6, 0.9, 0, 3)
    assert sampling.logit_bias == {5: -100.0}
    assert (request.stop, request.logprobs, request.tool_choice) == (("end",), 0, "function:get")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None}, ""),
        ({"content": None, "refusal": "no"}, ""),
        ({"content": [{"type": "refusal", "refusal": "no"}, {"type": "output_text", "text": "b"}]}, "no\nb"),
        ({"content": ["a", {"type": "input_text", "text": "b"}]}, "a\nb"),
    ],
)
def test_messages_that_clients_send_back_are_read(message: dict[str, Any], expected: str) -> None:
    (found,) = parse_chat({"model": "chat", "messages": [{"role": "assistant", **message}]}, 100, {}).messages
    assert found == {"role": "assistant", "content": expected}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_earlier_reasoning_reaches_the_template(name: str) -> None:
    (found,) = parse_chat({"model": "chat", "messages": [{"role": "assistant", name: "why"}]}, 100, {}).messages
    assert (found["reasoning"], found["reasoning_content"], found["content"]) == ("why", "why", "")


def test_neutral_values_of_unsupported_fields_are_accepted() -> None:
    neutral = {"best_of": 1, "suffix": None, "modalities": ["text"], "store": False, "skip_special_tokens": True}
    assert parse_chat({"model": "chat", "messages": [USER], **neutral}, 100, {}).choices == 1


def test_fields_of_vllm_are_read() -> None:
    body = {
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "stop_token_ids": [5, 7],
        "min_tokens": 3,
        "continue_final_message": True,
        "add_generation_prompt": False,
        "add_special_tokens": True,
        "structured_outputs": {"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": None},
        "guided_regex": None,
    }
    request = parse_chat({"model": "chat", "messages": [USER], **body}, 100, {})
    assert (request.parallel_calls, request.continues, request.generation_prompt) == (False, True, False)
    assert (request.stop_ids, request.sampling.min_tokens, request.add_special_tokens) == ((5, 7), 3, True)
    assert request.variables == {"enable_thinking": False}
    assert request.constraint == Constraint("json", '{"type":"object"}', "structured_outputs.json_object")


@pytest.mark.parametrize(
    ("variables", "effort", "template", "expected"),
    [
        ({"a": 1}, None, "", {"a": 1}),
        ({"a": 1}, "low", "{{ reasoning_effort }}", {"a": 1, "reasoning_effort": "low"}),
        ({"reasoning_effort": "high"}, "low", "{{ reasoning_effort }}", {"reasoning_effort": "high"}),
        ({}, "low", "{{ messages }}", None),
        ({}, "none", "{{ enable_thinking }}", {"enable_thinking": False}),
        ({"enable_thinking": False}, "max", "{{ enable_thinking }}", {"enable_thinking": False}),
    ],
)
def test_reasoning_effort_is_variable_of_templates_that_read_it(
    variables: dict[str, Any], effort: str | None, template: str, expected: dict[str, Any] | None
) -> None:
    if expected is None:
        with pytest.raises(LanguageError, match="reasoning_effort: the model's chat template does not read it"):
            merge_variables(variables, effort, template)
    else:
        assert merge_variables(variables, effort, template) == expected


def test_unknown_fields_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mindsporeserver"):
        parse_chat({"model": "chat", "messages": [USER], "colour": 1, "taste": 2}, 100, {})
    assert [record.getMessage() for record in caplog.records] == ["unknown request fields are ignored: colour, taste"]


# Of vLLM's ChatCompletionRequest and CompletionRequest.
VLLM_FIELDS = """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n presence_penalty
response_format seed stop stream stream_options temperature top_p tools tool_choice reasoning_effort
thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k min_p repetition_penalty
watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
allowed_token_ids bad_words echo add_generation_prompt continue_final_message add_special_tokens documents
chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id
session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets
return_prompt_text return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection
stream_interval prompt suffix prompt_embeds guided_json guided_regex guided_choice guided_grammar
guided_decoding_backend guided_whitespace_pattern best_of logits_processors
""".split()  # noqa: SIM905


def test_documentation_names_each_field_of_vllm() -> None:
    text = (Path(__file__).parents[4] / "docs" / "language-models.md").read_text()
    ignored = next(line for line in text.splitlines() if line.endswith("| ignored with a line in the log |"))
    for name in VLLM_FIELDS:
        is_read = name in CHAT_FIELDS | COMPLETION_FIELDS
        assert is_read or (f"`{name}`" in ignored) == (name not in UNSUPPORTED_FIELDS), name
        assert f"`{name}" in text, name
