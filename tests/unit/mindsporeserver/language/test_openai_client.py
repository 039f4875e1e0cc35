"""A server process and the real `openai` client."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

pytestmark = pytest.mark.mindspore

MESSAGES: Any = [{"role": "user", "content": "the quick brown fox"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Zürich", "Bern"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Place(BaseModel):
    city: Literal["Bern", "Zürich"]
    is_open: bool


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/openai/v1", api_key="-", max_retries=0)


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "chat", "messages": MESSAGES, "max_tokens": 12, "seed": 1, **fields}
    )


@pytest.mark.parametrize("prefix", ["/v1", "/openai/v1"])
def test_models_are_listed(url: str, prefix: str) -> None:
    client = OpenAI(base_url=url + prefix, api_key="-")
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("chat", "model")
    assert client.models.retrieve("chat").id == "chat"
    assert Model.model_validate(httpx.get(f"{url}{prefix}/models").json()["data"][0])


def test_changes_of_adapters_are_off_by_default(url: str) -> None:
    response = httpx.post(f"{url}/v1/load_lora_adapter", json={"lora_name": "new", "lora_path": "x"})
    assert response.status_code == 403
    assert "--allow-runtime-lora-updating=true" in response.json()["error"]["message"]
    assert "lora_requests_info{" not in httpx.get(f"{url}/metrics").text


def test_responses_fit_the_clients_types(url: str) -> None:
    def post(route: str, **fields: Any) -> Any:
        body = {"model": "chat", "max_tokens": 5, "logprobs": 1, **fields}
        return httpx.post(f"{url}/v1/{route}", json=body).raise_for_status()

    full = post("chat/completions", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2).json()
    assert_fits(ChatCompletion, full)
    assert_fits(Completion, post("completions", prompt=["the", "fox"]).json())
    stream = post(
        "chat/completions", messages=MESSAGES, logprobs=True, stream=True, stream_options={"include_usage": True}
    )
    events = stream.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        assert_fits(ChatCompletionChunk, json.loads(event.removeprefix("data: ")))
    assert stream.headers["content-type"].startswith("text/event-stream")


def test_echoed_prompt_has_no_first_logprob(url: str) -> None:
    body = {"model": "chat", "prompt": "the quick", "echo": True, "logprobs": 1, "max_tokens": 1}
    logprobs = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert len({len(values) for values in logprobs.values()}) == 1


def assert_fits(kind: type[BaseModel], value: dict[str, Any]) -> None:
    """Compare a response with the client's model: valid, and no field that it does not have."""
    kind.model_validate(value, strict=True)
    unknown = set(value) - set(kind.model_fields)
    assert not unknown
    choice = kind.model_fields["choices"].annotation.__args__[0]  # type: ignore[union-attr]
    for found in value["choices"]:
        assert set(found) <= set(choice.model_fields)


def test_stream_equals_whole_response(client: OpenAI) -> None:
    whole = chat(client, n=3)
    chunks = list(chat(client, n=3, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        parts = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.delta.role for part in parts] == ["assistant", *[None] * (len(parts) - 1)]
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {choice.message.content for choice in whole.choices} != {whole.choices[0].message.content}


def test_stream_helper_accumulates(client: OpenAI) -> None:
    with client.chat.completions.stream(model="chat", messages=MESSAGES, response_format=Place, seed=2) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Place)


def test_asynchronous_clients_share_batches(url: str) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
            requests = [
                client.completions.create(model="chat", prompt="the", max_tokens=9, seed=i % 3) for i in range(9)
            ]
            return [response.choices[0].text for response in await asyncio.gather(*requests)]

    texts = asyncio.run(ask())
    assert texts[:3] * 3 == texts


def test_structured_output_is_parsed(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="chat", messages=MESSAGES, response_format=Place, max_tokens=200, seed=2
    )
    assert isinstance(parsed.choices[0].message.parsed, Place)
    text = chat(client, response_format={"type": "json_object"}, max_tokens=100, logit_bias={}, n=2).choices[0]
    assert text.finish_reason == "length" or isinstance(json.loads(text.message.content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_required_tool_is_called(client: OpenAI, choice: Any, stream: bool) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 150}
    if stream:
        with client.chat.completions.stream(model="chat", messages=MESSAGES, **fields) as events:
            final = events.get_final_completion().choices[0]
    else:
        final = chat(client, **fields).choices[0]
    (call,) = final.message.tool_calls
    assert final.finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Zürich", "Bern")
    history = [*MESSAGES, final.message.model_dump(exclude_none=True, include={"role", "tool_calls"})]
    history[1]["tool_calls"] = [
        {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
    ]
    assert chat(client, messages=[*history, {"role": "tool", "tool_call_id": call.id, "content": "rain"}], tools=[TOOL])


EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    # vLLM's quickstart and its documentation of extra parameters.
    ("completions", {"prompt": "San Francisco is a", "max_tokens": 7, "temperature": 0}),
    (
        "chat/completions",
        {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "Who won the world series in 2020?"},
            ],
        },
    ),
    (
        "completions",
        {"prompt": "A robot may not injure a human being", "n": 2, "stream": False, "logprobs": 3, "best_of": None},
    ),
    (
        "chat/completions",
        {"messages": MESSAGES, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "skip_special_tokens": True},
    ),
    # llama.cpp's server.
    (
        "chat/completions",
        {
            "messages": [{"role": "user", "content": "Write a limerick about python exceptions"}],
            "response_format": {
                "type": "json_object",
                "schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            },
        },
    ),
    ("completions", {"prompt": ["Building a website can be done in 10 simple steps:"], "cache_prompt": True}),
]


@pytest.mark.parametrize(("route", "fields"), EXAMPLES, ids=str)
def test_examples_of_other_servers_are_answered(url: str, route: str, fields: dict[str, Any]) -> None:
    response = httpx.post(f"{url}/v1/{route}", json={"model": "chat", "max_tokens": 16, "seed": 1, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] > 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_prints_stream(url: str) -> None:
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 20, "ignore_eos": True, "stream": True}
    command = ["curl", "-sN", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d"]
    printed = subprocess.run([*command, json.dumps(body)], capture_output=True, text=True, check=True).stdout
    *chunks, end, rest = printed.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    assert all(ChatCompletionChunk.model_validate_json(chunk.removeprefix("data: ")) for chunk in chunks)
    assert len(chunks) > 1


async def ask_readiness(url: str) -> tuple[bool, bool, bool]:
    from kserve import InferenceRESTClient, RESTConfig

    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    return (
        await client.is_server_live(url), await client.is_server_ready(url), await client.is_model_ready(url, "chat")
    )  # fmt: skip


def test_kserve_client_sees_ready_model(url: str) -> None:
    assert asyncio.run(ask_readiness(url)) == (True, True, True)


def test_echo_scores_the_prompt(client: OpenAI) -> None:
    response = client.completions.create(model="chat", prompt="the quick fox", echo=True, logprobs=1, max_tokens=0)
    logprobs = response.choices[0].logprobs
    assert response.choices[0].text == "the quick fox" == "".join(logprobs.tokens)
    assert logprobs.token_logprobs[0] is None
    assert all(number < 0 for number in logprobs.token_logprobs[1:])
    assert response.usage.completion_tokens == 0
    ids = httpx.post(str(client.base_url).replace("openai/v1/", "tokenize"), json={"prompt": "the quick fox"}).json()[
        "tokens"
    ]
    by_id = client.completions.create(model="chat", prompt=ids, echo=True, logprobs=1, max_tokens=0)
    assert by_id.choices[0].logprobs == logprobs


def test_second_request_reads_prefix_cache(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "jumps over the lazy dog " * 8}]
    first, second = (chat(client, messages=messages) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 17


@pytest.mark.parametrize(
    ("fields", "kind", "code", "param"),
    [
        ({"model": "missing"}, openai.NotFoundError, "model_not_found", "model"),
        ({"messages": []}, openai.BadRequestError, None, "messages"),
        ({"temperature": -1}, openai.BadRequestError, None, "temperature"),
        ({"max_tokens": 10_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "fox " * 600}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 2_000_000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
        ({"n": 128, "max_tokens": 480}, openai.BadRequestError, None, "n"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}},
            openai.BadRequestError,
            None,
            "response_format.json_schema.schema",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_are_the_clients(client: OpenAI, fields: Any, kind: Any, code: str | None, param: str) -> None:
    with pytest.raises(kind) as raised:
        chat(client, **fields)
    assert (raised.value.code, raised.value.param) == (code, param)
    with pytest.raises(kind):
        chat(client, **fields, stream=True)


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"guided_regex": "[0-9]{4}-[0-9]{2}"}, "[0-9]{4}-[0-9]{2}"),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9] [0-9]'}}, "a[0-9][0-9]"),
        ({"guided_json": {"enum": ["x", 5]}}, '"x"|5'),
    ],
    ids=str,
)
def test_constraints_of_vllm_are_followed(url: str, route: str, fields: dict[str, Any], pattern: str) -> None:
    prompt = {"messages": MESSAGES} if route.startswith("chat") else {"prompt": "the quick"}
    response = httpx.post(f"{url}/v1/{route}", json={"model": "chat", "max_tokens": 60, "n": 2, **prompt, **fields})
    assert response.status_code == 200, response.text
    for choice in response.json()["choices"]:
        text = choice["message"]["content"] if route.startswith("chat") else choice["text"]
        assert re.fullmatch(pattern, text)
        assert choice["finish_reason"] == "stop"


def test_prompt_follows_fields_of_template(client: OpenAI) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": " The lazy "}]
    user = "<|im_start|>user\nthe quick brown fox<|im_end|>\n"
    answer = f"{user}<|im_start|>assistant\n The lazy "
    for fields, expected in (
        ({"add_generation_prompt": False}, user),
        ({"chat_template_kwargs": {"enable_thinking": False}}, f"{user}<|im_start|>assistant\n<think>\n\n</think>\n"),
        ({"reasoning_effort": "low"}, f"{user}<|im_start|>assistant\nReasoning: low\n"),
        ({"messages": begun, "add_generation_prompt": False}, f"{answer}<|im_end|>\n"),
        ({"messages": begun, "add_generation_prompt": False, "continue_final_message": True}, answer),
    ):
        body = {"model": "chat", "messages": MESSAGES, **fields}
        with httpx.Client(base_url=str(client.base_url)) as session:
            ids = session.post("tokenize", json=body).json()["tokens"]
            assert session.post("detokenize", json={"tokens": ids}).json()["prompt"] == expected
        whole = chat(client, **_split(fields))
        assert whole.usage.prompt_tokens == len(ids)


def _split(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields as the client takes them: unknown ones as `extra_body`."""
    own = {name: value for name, value in fields.items() if name == "messages"}
    return {**own, "extra_body": {name: value for name, value in fields.items() if name not in own}}


def test_answer_has_min_tokens_and_ends_at_stop_token(client: OpenAI) -> None:
    free = chat(client, max_tokens=40, temperature=0, logprobs=True, extra_body={"min_tokens": 40})
    assert free.usage.completion_tokens == 40
    tokens = [item.token for item in free.choices[0].logprobs.content]
    with httpx.Client(base_url=str(client.base_url)) as session:
        ids = [session.post("tokenize", json={"prompt": token}).json()["tokens"] for token in tokens]
    single = next(at for at, found in enumerate(ids) if len(found) == 1 and found not in ids[:at] and at > 2)
    fields = {"stop_token_ids": ids[single]}
    ended = chat(client, max_tokens=40, temperature=0, extra_body=fields).choices[0]
    assert (ended.finish_reason, ended.message.content) == ("stop", "".join(tokens[:single]))
    later = chat(client, max_tokens=40, temperature=0, extra_body={**fields, "min_tokens": single + 2})
    assert later.usage.completion_tokens >= single + 2


def test_request_that_forbids_parallel_calls_is_answered(client: OpenAI) -> None:
    answer = chat(client, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=150)
    assert len(answer.choices[0].message.tool_calls) == 1


@pytest.mark.parametrize("text", ['"\\ud800"', '"x\\udfff"'])
def test_lone_surrogate_in_tool_is_an_error_of_its_field(url: str, text: str) -> None:
    body = json.dumps({"model": "chat", "messages": MESSAGES, "tools": [TOOL]})
    body = body.replace('"Return the weather."', text)
    response = httpx.post(f"{url}/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].function.description"


@pytest.mark.parametrize("route", ["load_lora_adapter", "unload_lora_adapter", "chat/completions", "tokenize"])
def test_lone_surrogate_is_an_error_of_its_field_everywhere(url: str, route: str) -> None:
    body = json.dumps({"model": "chat", "messages": MESSAGES, "lora_name": "\ud800"})
    response = httpx.post(f"{url}/v1/{route}", content=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "lora_name")


def test_texts_round_trip_through_tokens(url: str) -> None:
    text = "<|im_start|>user\nGrüße 🙂"
    tokens = httpx.post(f"{url}/tokenize", json={"model": "chat", "prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert httpx.post(f"{url}/v1/detokenize", json={"model": "chat", "tokens": tokens["tokens"]}).json() == {
        "prompt": text
    }
    messages = httpx.post(f"{url}/tokenize", json={"model": "chat", "messages": MESSAGES}).json()["tokens"]
    rendered = httpx.post(f"{url}/detokenize", json={"tokens": messages}).json()["prompt"]
    assert rendered == "<|im_start|>user\nthe quick brown fox<|im_end|>\n<|im_start|>assistant\n"
    assert httpx.post(f"{url}/detokenize", json={"tokens": [10**9]}).json()["error"]["param"] == "tokens[0]"


def test_other_protocols_refuse_language_model(url: str) -> None:
    assert httpx.get(f"{url}/version").json()["version"]
    assert httpx.get(f"{url}/v2/models/chat").json()["platform"] == "mindspore_causal_lm"
    for path in ("/v1/models/chat:predict", "/v2/models/chat/infer"):
        response = httpx.post(url + path, json={"instances": [1]})
        assert response.status_code == 501
        assert "/openai/v1" in response.json()["error"]
    assert httpx.get(f"{url}/v1/models/chat").json()["ready"] is True


def test_reasoning_is_separate_from_content(client: OpenAI) -> None:
    fields: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    texts = {}
    for content in ("<think>", "<thing>"):
        messages = [*MESSAGES, {"role": "assistant", "content": content}]
        whole = chat(client, messages=messages, extra_body=fields).choices[0].message.model_dump()
        stream = list(chat(client, messages=messages, extra_body=fields, stream=True))
        deltas = [chunk.choices[0].delta.model_dump() for chunk in stream]
        assert whole.get("reasoning") == whole.get("reasoning_content")
        for name in ("content", "reasoning", "reasoning_content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == (whole.get(name) or "")
        texts[content] = (whole.get("reasoning_content"), whole["content"])
    assert texts["<think>"][0]
    assert texts["<think>"][1] is None
    assert texts["<thing>"][0] is None
    assert texts["<thing>"][1]
    answered = {"role": "assistant", "content": None, **dict.fromkeys(("reasoning", "reasoning_content"), "so")}
    assert chat(client, messages=[*MESSAGES, answered, *MESSAGES]).usage.completion_tokens
    thinking = [*MESSAGES, {"role": "assistant", "content": "<think>"}]
    hidden = {**fields, "include_reasoning": False}
    message = chat(client, messages=thinking, extra_body=hidden).choices[0].message
    assert (message.content, message.model_dump().get("reasoning_content")) == ("", None)
    deltas = [chunk.choices[0].delta for chunk in chat(client, messages=thinking, extra_body=hidden, stream=True)]
    assert not any(delta.content or delta.model_dump().get("reasoning_content") for delta in deltas)
    constrained = chat(client, messages=messages, extra_body={**fields, "guided_choice": ["red", "green"]})
    assert constrained.choices[0].message.content in ("red", "green")


def test_responses_are_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="send POST chat/completions"):
        client.responses.create(model="chat", input="hello")
    with pytest.raises(openai.NotFoundError, match="send POST chat/completions"):
        client.responses.retrieve("resp_1")


def test_metrics_have_vllms_names(url: str, client: OpenAI) -> None:
    chat(client)
    text = httpx.get(f"{url}/metrics").text
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total"),
        *("prefix_cache_hits_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    ):
        assert f"vllm:{name}{{" in text
        assert 'model_name="chat"' in next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
