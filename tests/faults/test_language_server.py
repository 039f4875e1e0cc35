"""Streams of a language model under lost, slow and hostile clients, shutdown, reload and overload."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.language.language_servers import LanguageServer
from tests.support.language.numpy_decoder import write_decoder_bundle

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GENERATED, PROMPTED = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
# Such streams outlast each test step on a busy machine; none is read to its end.
LONG = 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    """A server with one slot."""
    flags = ("--max-num-seqs=1", f"--max-model-len={LONG + 500}", f"--max-queue-tokens={3 * LONG}")
    with LanguageServer(tmp_path_factory.mktemp("one"), *flags) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture
def client(server: LanguageServer) -> OpenAI:
    server.wait_metric(RUNNING, 0)
    return OpenAI(base_url=f"{server.url}/openai/v1", api_key="-", max_retries=0)


def open_stream(client: OpenAI, max_tokens: int = LONG, **fields: Any) -> Any:
    """Start a stream, and return it after its first piece."""
    stream = client.completions.create(
        model="chat", prompt="the", max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True, **fields}
    )
    next(iter(stream))
    return stream


def send(server: LanguageServer, fields: dict[str, Any], receive_bytes: int = 0) -> socket.socket:
    """Send a completion request by a bare socket."""
    url = httpx.URL(server.url)
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect((url.host, url.port))
    body = json.dumps({"model": "chat", "prompt": "the", "ignore_eos": True, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_client_that_leaves_frees_its_slot(server: LanguageServer, client: OpenAI) -> None:
    stream = open_stream(client)
    before = server.read_metric(GENERATED)
    stream.close()
    server.wait_metric(RUNNING, 0)
    assert server.read_metric(GENERATED) - before < LONG / 2
    assert client.completions.create(model="chat", prompt="the", max_tokens=3).choices[0].finish_reason


def test_client_that_leaves_before_its_prefill_costs_nothing(server: LanguageServer, client: OpenAI) -> None:
    stream = open_stream(client)
    before = server.read_metric(PROMPTED)
    waiting = send(server, {"prompt": "fox " * 50, "max_tokens": 5})
    server.wait_metric(WAITING, 1)
    waiting.close()
    server.wait_metric(WAITING, 0)
    stream.close()
    server.wait_metric(RUNNING, 0)
    assert server.read_metric(PROMPTED) == before


def test_slow_reader_is_ended(server: LanguageServer, client: OpenAI) -> None:
    connection = send(server, {"max_tokens": LONG, "stream": True, "logprobs": 20}, receive_bytes=4096)
    server.wait_metric(RUNNING, 1)
    server.wait_metric(RUNNING, 0, seconds=60)
    assert "a stream was ended: its client did not read" in server.log.read_text()
    connection.close()


def test_full_queue_is_refused_and_retried(server: LanguageServer, client: OpenAI) -> None:
    stream = open_stream(client)
    queued = [send(server, {"max_tokens": LONG}) for _ in range(2)]
    server.wait_metric(WAITING, 2)
    refused = httpx.post(f"{server.url}/v1/completions", json={"model": "chat", "prompt": "a", "max_tokens": LONG})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="chat", prompt="a", max_tokens=LONG)

    def leave() -> None:
        for connection in queued:
            connection.close()
        stream.close()

    timer = threading.Timer(0.5, leave)
    timer.start()
    patient = client.with_options(max_retries=2)
    assert patient.completions.create(model="chat", prompt="a", max_tokens=5).usage.completion_tokens
    timer.join()


def test_request_that_waits_too_long_is_refused(server: LanguageServer, client: OpenAI) -> None:
    # Made before: reading the certificates takes long on a busy machine, and the stream ends after seconds.
    with httpx.Client(base_url=server.url, headers={"x-envoy-expected-rq-timeout-ms": "1"}) as http:
        stream = open_stream(client)
        response = http.post("/v1/completions", json={"model": "chat", "prompt": "a", "stream": True})
    stream.close()
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "server_error"


def test_curl_reads_stream(server: LanguageServer, client: OpenAI) -> None:
    body = json.dumps({"model": "chat", "prompt": "the", "max_tokens": 5, "stream": True})
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    """A server with four slots."""
    with LanguageServer(tmp_path_factory.mktemp("four"), "--max-num-seqs=4", "--max-model-len=6000") as server:
        yield server


def list_properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"key{index}": {"type": "integer"} for index in range(count)}}


HOSTILE: list[dict[str, Any]] = [
    {"prompt": "the", "stop": ["x"] * 10_000},
    {"prompt": "the", "temperature": -1},
    {"prompt": "x" * 5_000_000},
    {"prompt": [10**8]},
    {"prompt": "the", "n": 128, "max_tokens": 5000},
    {"prompt": "the", "response_format": {"type": "json_schema", "json_schema": {"schema": list_properties(2000)}}},
    {"prompt": "the", "logit_bias": {str(index): 1 for index in range(5000)}},
]


def test_hostile_requests_change_no_other_stream(shared: LanguageServer) -> None:
    fields: dict[str, Any] = {"model": "chat", "prompt": "the quick", "max_tokens": 4000, "seed": 3}
    client = OpenAI(base_url=f"{shared.url}/v1", api_key="-", max_retries=0)
    expected = client.completions.create(**fields, extra_body={"ignore_eos": True}).choices[0].text
    refused: list[httpx.Response] = []

    def attack() -> None:
        refused.extend(httpx.post(f"{shared.url}/v1/completions", json={"model": "chat", **body}) for body in HOSTILE)

    attacker = threading.Thread(target=attack)
    stream = client.completions.create(**fields, stream=True, extra_body={"ignore_eos": True})
    text, gaps, last = next(iter(stream)).choices[0].text, [], time.monotonic()
    attacker.start()
    for chunk in stream:
        text += chunk.choices[0].text
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    attacker.join()
    assert text == expected
    assert [response.status_code for response in refused] == [400] * len(HOSTILE)
    assert all(response.json()["error"]["param"] for response in refused)
    assert max(gaps) < 10


def test_failing_request_ends_alone(shared: LanguageServer) -> None:
    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="-", max_retries=0) as client:
            poison = await _find_last_token(shared)

            async def complete(**fields: Any) -> str:
                response = await client.completions.create(model="chat", prompt="the", max_tokens=200, seed=1, **fields)
                return response.choices[0].text

            expected = await complete()
            results = await asyncio.gather(
                complete(), complete(logit_bias={str(poison): 100}), complete(), return_exceptions=True
            )
            assert results[::2] == [expected, expected]
            assert isinstance(results[1], openai.InternalServerError)
            assert "not finite" in str(results[1])

    asyncio.run(run())


async def _find_last_token(server: LanguageServer) -> int:
    body = {"model": "chat", "prompt": [10**9]}
    message = httpx.post(f"{server.url}/v1/completions", json=body).json()["error"]["message"]
    return int(message.split("from 0 to ")[1].split(",")[0])


def test_reload_and_unload_leave_streams_running(shared: LanguageServer) -> None:
    client = OpenAI(base_url=f"{shared.url}/v1", api_key="-", max_retries=0)
    streams = [open_stream(client, 3000) for _ in range(3)]
    assert httpx.post(f"{shared.url}/v2/repository/models/chat/load").status_code == 200
    assert httpx.post(f"{shared.url}/v2/repository/models/chat/unload").status_code == 200
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="chat", prompt="the", max_tokens=3)
    for stream in streams:
        *_, last = stream
        assert last.choices[0].finish_reason == "length"
    assert httpx.post(f"{shared.url}/v2/repository/models/chat/load", timeout=60).status_code == 200
    assert client.completions.create(model="chat", prompt="the", max_tokens=3).usage.completion_tokens


def test_replaced_bundle_serves_new_requests_while_old_streams_finish(tmp_path: Path) -> None:
    with LanguageServer(tmp_path, "--max-num-seqs=2", "--max-model-len=9000") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
        expected = client.completions.create(
            model="chat", prompt="the", max_tokens=8000, seed=1, extra_body={"ignore_eos": True}
        )
        stream = open_stream(client, 8000, seed=1)
        write_decoder_bundle(tmp_path / "bundle", template="{{ messages[0].content }}")
        assert httpx.post(f"{server.url}/v2/repository/models/chat/load", timeout=60).status_code == 200
        assert server.read_metric(RUNNING) == 1
        body = {"model": "chat", "messages": [{"role": "user", "content": "fox"}]}
        tokens = httpx.post(f"{server.url}/tokenize", json=body).json()["count"]
        assert tokens < 4
        *_, last = stream
        assert last.choices[0].finish_reason == expected.choices[0].finish_reason == "length"
        server.wait_metric(RUNNING, 0)


def test_streams_finish_or_end_with_error_at_shutdown(tmp_path: Path) -> None:
    flags = ("--max-num-seqs=2", "--max-model-len=40000", "--grace_period=2")
    with LanguageServer(tmp_path, *flags) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
        long, short = open_stream(client, 39_000), open_stream(client, 500)
        server.terminate()
        *_, last = short
        assert last.choices[0].finish_reason == "length"
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in long:
                pass
        assert server.process.wait(20) == 0
