"""What the log has of a language model's requests: token counts, and texts when they are wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.language.language_servers import LanguageServer

pytestmark = pytest.mark.mindspore

SECRET = "quick brown fox"
MESSAGES: Any = [{"role": "user", "content": f"the {SECRET}"}]
TYPE = "org.kubeflow.serving.inference."


def run_requests(directory: Path, **options: Any) -> tuple[list[Any], dict[tuple[str, str], Any], str]:
    """Send a chat, a stream and a completion; return the responses, the logged bodies by ID and type, and the log."""
    log = directory / "log.jsonl"
    flag = "--logger=" + json.dumps({"url": str(log), **options})
    (directory / "server").mkdir()
    with LanguageServer(directory / "server", flag) as server:
        client = OpenAI(base_url=f"{server.url}/openai/v1", api_key="-", max_retries=0)
        fields: Any = {"model": "chat", "max_tokens": 8, "seed": 1, "temperature": 0.5}
        chat = client.chat.completions.create(messages=MESSAGES, user=SECRET, **fields)
        stream = list(client.chat.completions.create(messages=MESSAGES, stream=True, **fields))
        completion = client.completions.create(prompt=SECRET, extra_headers={"x-request-id": "mine"}, **fields)
        server.terminate()
        assert server.process.wait(30) == 0
    text = log.read_text()
    events = [json.loads(line) for line in text.splitlines()]
    return (
        [chat, stream, completion],
        {(one["id"], one["type"].removeprefix(TYPE)): one["data"] for one in events},
        text,
    )


def test_token_counts_without_texts(tmp_path: Path) -> None:
    (chat, stream, _), found, text = run_requests(tmp_path)
    ids = (chat.id, stream[0].id, "mine")
    assert set(found) == {(key, kind) for key in ids for kind in ("request", "response")}
    assert found[chat.id, "request"] == {"model": "chat", "max_tokens": 8, "seed": 1, "temperature": 0.5}
    assert found[stream[0].id, "request"]["stream"] is True
    for key in ids:
        response = found[key, "response"]
        assert response["choices"] == [{"index": 0, "finish_reason": response["choices"][0]["finish_reason"]}]
        assert response["usage"]["completion_tokens"] > 0
    assert found[chat.id, "response"]["usage"] == chat.usage.model_dump(exclude_none=True)
    assert SECRET not in text
    assert not chat.choices[0].message.content.strip() or chat.choices[0].message.content not in text


def test_texts_when_wanted(tmp_path: Path) -> None:
    (chat, stream, completion), found, _ = run_requests(tmp_path, texts=True)
    assert found[chat.id, "request"]["messages"] == MESSAGES
    assert found[chat.id, "response"]["choices"][0]["message"]["content"] == chat.choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    logged = found[stream[0].id, "response"]["choices"][0]
    assert (logged["message"]["content"], logged["finish_reason"]) == (streamed, stream[-1].choices[0].finish_reason)
    assert found["mine", "request"]["prompt"] == SECRET
    assert found["mine", "response"]["choices"][0]["text"] == completion.choices[0].text
