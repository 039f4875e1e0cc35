"""The router in front of real servers: what fails before its first byte is answered by the next replica."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.serving.router import Router, RouterOptions, compute_key, rank_replicas
from tests.support.language.language_servers import LanguageServer

# No check comes between two requests.
OPTIONS = RouterOptions(health_interval=60)
Handler = Callable[[Request], Any]


@contextlib.asynccontextmanager
async def serve(application: Starlette) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def build_replica(answer: Handler) -> Starlette:
    async def get_health(request: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/health", get_health), Route("/v1/completions", answer, methods=["POST"])])


@contextlib.asynccontextmanager
async def serve_router(*urls: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(Router(urls, OPTIONS).build_application()) as url, httpx.AsyncClient(base_url=url) as client:
        yield client


def send(client: httpx.AsyncClient, prompt: str, **fields: Any) -> Any:
    return client.post("/v1/completions", json={"model": "chat", "prompt": prompt, "max_tokens": 2, **fields})


@pytest.mark.mindspore
@pytest.mark.slow
def test_killed_replica_loses_no_request(tmp_path: Path) -> None:
    async def scenario(first: LanguageServer, second: LanguageServer) -> None:
        async with serve_router(first.url, second.url) as client:
            prompts = [f"{number} the quick brown fox" for number in range(8)]
            for _ in range(2):
                answers = [await send(client, prompt) for prompt in prompts]
                assert {answer.status_code for answer in answers} == {200}
            metrics = (await client.get("/metrics")).text
            served = {url: _read(metrics, "lm_router_requests_total", url) for url in (first.url, second.url)}
            expected = Counter(rank_replicas(f"chat\n{prompt}", served)[0] for prompt in prompts)
            assert served == {url: 2 * expected[url] for url in served}
            first.process.kill()
            first.process.wait(20)
            answers = [await send(client, prompt) for prompt in prompts]
            assert {answer.status_code for answer in answers} == {200}
            stream = await send(client, prompts[0], stream=True)
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.text.endswith("data: [DONE]\n\n")
            assert (await client.get("/health")).json()["replicas"][second.url] == "healthy"
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "chat"
            second.process.kill()
            second.process.wait(20)
            answer = await send(client, prompts[0])
            assert answer.status_code == 503
            assert first.url in answer.json()["error"]["message"]
            assert (await client.get("/health")).status_code == 503

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with LanguageServer(tmp_path / "first") as first, LanguageServer(tmp_path / "second") as second:
        asyncio.run(scenario(first, second))


def _read(metrics: str, name: str, url: str) -> float:
    line = next((line for line in metrics.splitlines() if line.startswith(f'{name}{{replica="{url}"}}')), "0")
    return float(line.rpartition(" ")[2])


def test_stream_passes_unbuffered_and_its_break_is_an_event() -> None:
    async def scenario() -> None:
        received = asyncio.Event()

        async def answer(request: Request) -> Response:
            async def stream() -> AsyncIterator[bytes]:
                yield b"data: 1\n\n"
                await received.wait()
                yield b"data: 2\n\n"
                raise ConnectionError

            return StreamingResponse(stream(), media_type="text/event-stream")

        async with serve(build_replica(answer)) as url, serve_router(url) as client:
            body = {"prompt": "a"}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                assert await anext(lines) == "data: 1"
                received.set()
                rest = [line async for line in lines if line]
        assert rest[0] == "data: 2"
        assert "broke off" in json.loads(rest[-1].removeprefix("data: "))["error"]["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", ["closed", "busy"])
def test_failure_before_first_byte_is_repeated_elsewhere(failure: str) -> None:
    async def scenario() -> None:
        async def answer(request: Request) -> Response:
            return JSONResponse({"prompt": (await request.json())["prompt"]})

        async def refuse(request: Request) -> Response:
            return JSONResponse({"error": "not loaded"}, 503)

        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = await reader.readline()
            if line.startswith(b"GET /health"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        async with serve(build_replica(answer)) as good, contextlib.AsyncExitStack() as stack:
            if failure == "busy":
                bad = await stack.enter_async_context(serve(build_replica(refuse)))
            else:
                listener = await stack.enter_async_context(await asyncio.start_server(close, "127.0.0.1", 0))
                bad = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            async with serve_router(good, bad) as client:
                answers = await asyncio.gather(*(send(client, str(number)) for number in range(16)))
                assert [answer.json()["prompt"] for answer in answers] == [str(number) for number in range(16)]

    asyncio.run(scenario())


def test_disconnected_client_ends_request_at_replica() -> None:
    async def scenario() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def answer(request: Request) -> Response:
            await request.body()
            started.set()
            while (await request.receive())["type"] != "http.disconnect":
                pass
            ended.set()
            return Response()

        async with serve(build_replica(answer)) as url, serve_router(url) as client:
            task = asyncio.create_task(send(client, "a"))
            await asyncio.wait_for(started.wait(), 60)
            task.cancel()
            await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(scenario())


@given(st.integers(2, 6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_added_replica_takes_its_share_only(count: int, seed: int) -> None:
    urls = [f"http://replica-{seed}-{number}" for number in range(count)]
    keys = [f"chat\n{number}" for number in range(400)]
    moved = 0
    for key in keys:
        before, after = rank_replicas(key, urls[:-1])[0], rank_replicas(key, urls)[0]
        assert after in (before, urls[-1])
        moved += after != before
    assert moved == pytest.approx(400 / count, abs=60)


def test_key_is_the_same_for_all_turns() -> None:
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    later = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}]
    keys = {compute_key({"model": "chat", "messages": messages}, 512) for messages in (first, later)}
    assert len(keys) == 1
    assert compute_key({"model": "chat", "prompt": "a" * 600}, 512) == f"chat\n{'a' * 512}"
    assert compute_key({"model": "other", "messages": first}, 512) not in keys
    assert compute_key([1], 512) == ""


def test_wrong_addresses_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for urls, message in ((["localhost:80"], "got 'localhost:80'"), (["http://a", "http://a/"], "is there twice")):
        with pytest.raises(ValidationError, match=message):
            Router(urls)
    assert run(["lm", "route", "localhost:80"]) == 2
    assert "URL: must be http://host:port" in capsys.readouterr().err
