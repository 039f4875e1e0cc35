"""Misbehaving clients: slow and silent ones, half requests, and very many at once."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.serving.model_servers import ModelServer
from tests.support.serving.serving_client import Client, Connection

pytestmark = pytest.mark.mindspore

HEAD = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture
def server(everything: ModelServer) -> ModelServer:
    return everything


@pytest.fixture(scope="module")
def samples(models: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    verified = ModelBundle.open(models / "free").read_verified()
    return np.asarray(verified.inputs["image"]), np.asarray(verified.outputs["output"])


class _Crowd:
    """Connections that are opened raw and never behave."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, count: int, content: bytes = b"") -> None:
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(content)
            self.writers.append(writer)

    async def trickle(self, count: int, content: bytes, pause: float = 0.05) -> None:
        """Send a byte at a time, for ever."""

        async def send(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                for byte in content:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(pause)

        first = len(self.writers)
        await self.open(count)
        self.tasks += [asyncio.create_task(send(writer)) for writer in self.writers[first:]]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for writer in self.writers:
            writer.close()


async def _ask_well(server: ModelServer, samples: Any, count: int) -> list[float]:
    """Send several requests in each protocol by several clients; return the seconds of each response."""
    inputs, outputs = samples
    seconds: list[float] = []

    async def work(worker: int) -> None:
        async with Client(server.port, server.grpc_port, "digits") as client:
            for index in range(count):
                row = slice((worker + index) % 32, (worker + index) % 32 + 1)
                protocol = ("v1", "v2", "binary", "grpc", "grpc-raw")[index % 5]
                begun = time.monotonic()
                answer, found = await client.ask(protocol, {"image": inputs[row]})
                seconds.append(time.monotonic() - begun)
                assert found is not None, answer
                np.testing.assert_allclose(found["output"], outputs[row], atol=1e-5)

    await asyncio.gather(*(work(worker) for worker in range(4)))
    return sorted(seconds)


def _count_files(server: ModelServer) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def test_slow_and_silent_clients_delay_no_other(server: ModelServer, samples: Any, eventually: Any) -> None:
    files, memory = _count_files(server), server.read_memory()

    async def run() -> tuple[list[float], list[float]]:
        alone = await _ask_well(server, samples, 50)
        crowd = _Crowd(server.port)
        await crowd.open(200)
        await crowd.trickle(50, HEAD + b"X-Slow: " + b"x" * 10_000)
        await crowd.open(50, HEAD + b"Content-Length: 100000\r\n\r\n" + b'{"instances":' + b" " * 5000)
        await crowd.trickle(50, HEAD + b"Content-Length: 100000\r\n\r\n" + b'{"instances":' + b" " * 5000)
        try:
            beside = await _ask_well(server, samples, 50)
        finally:
            await crowd.close()
        return alone, beside

    alone, beside = asyncio.run(run())
    told = f"median {alone[100] * 1e3:.1f} ms alone, {beside[100] * 1e3:.1f} ms beside 350 clients that do nothing"
    assert beside[100] < 4 * alone[100] + 0.02, told
    assert server.read_memory() - memory < 64 << 20
    eventually(lambda: _count_files(server) < files + 20)


def test_half_body_and_goodbye(server: ModelServer, samples: Any, eventually: Any) -> None:
    cancelled = server.sum_metric("mindsporeserver_request_failures_total", reason="cancelled")
    rows = server.sum_metric("mindsporeserver_batch_rows_sum")

    async def run() -> None:
        crowd = _Crowd(server.port)
        await crowd.open(30, HEAD + b"Content-Length: 5000\r\n\r\n" + b'{"instances": [[[[' + b"0, " * 100)
        await crowd.open(10, HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{")
        await asyncio.gather(*(writer.drain() for writer in crowd.writers))
        in_flight = _read_requests
        await asyncio.to_thread(lambda: eventually(lambda: in_flight(server) >= requests + 40))
        await crowd.close()

    requests = _read_requests(server)
    asyncio.run(run())
    eventually(
        lambda: server.sum_metric("mindsporeserver_request_failures_total", reason="cancelled") == cancelled + 40
    )
    assert server.sum_metric("mindsporeserver_batch_rows_sum") == rows
    assert asyncio.run(_ask_well(server, samples, 5))
    assert "Traceback" not in server.read_log()


def _read_requests(server: ModelServer) -> float:
    return server.sum_metric("mindsporeserver_requests_total")


def test_bodies_that_are_too_large_are_refused_before_they_are_whole(server: ModelServer, samples: Any) -> None:
    peak = server.read_peak_memory()

    async def run() -> None:
        for head in (b"Content-Length: 4000000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HEAD + head)
            chunk = b" " * 100_000 if head.startswith(b"Content") else b"186a0\r\n" + b" " * 100_000 + b"\r\n"
            sent = 0
            answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            with contextlib.suppress(ConnectionError):
                while not answer.done() and sent < 50_000_000:
                    writer.write(chunk)
                    sent += 100_000
                    await writer.drain()
                    await asyncio.sleep(0)
            assert b" 413 " in await answer, sent
            assert sent < 30_000_000
            writer.close()
        for size in (1_000_001, 20_000_000):
            async with Connection(server.port) as connection:
                refused = await connection.request("POST", "/v2/models/digits/infer", b" " * size)
                assert refused.status == 413, refused
        await _ask_well(server, samples, 5)

    asyncio.run(run())
    assert server.read_peak_memory() - peak < 64 << 20


def test_gzip_of_many_members_delays_no_other(server: ModelServer) -> None:
    content = gzip.compress(b"")
    content *= 1_000_000 // len(content)

    async def run() -> None:
        async def send() -> int:
            async with Connection(server.port) as connection:
                headers = (("Content-Encoding", "gzip"),)
                answer = await connection.request("POST", "/v1/models/digits:predict", content, headers)
                return answer.status

        start = time.monotonic()
        sending = [asyncio.create_task(send()) for _ in range(8)]
        async with Connection(server.port) as connection:
            while not all(task.done() for task in sending):
                before = time.monotonic()
                assert (await connection.get("/metrics")).status == 200
                assert time.monotonic() - before < 2
        assert [task.result() for task in sending] == [413] * 8
        assert time.monotonic() - start < 10

    asyncio.run(run())


@pytest.mark.parametrize(
    ("model", "headers", "status"),
    [("nobody", {}, 404), ("digits", {"Content-Encoding": "gzip"}, 413), ("digits", {}, 413)],
    ids=["unknown", "compressed", "too large"],
)
def test_refused_client_that_half_closes_gets_reason(
    server: ModelServer, model: str, headers: dict[str, str], status: int
) -> None:
    # urllib sends one request per connection, all of it before it reads.
    url = f"http://127.0.0.1:{server.port}/v1/models/{model}:predict"
    for _ in range(5):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, b" " * 8_000_000, headers), timeout=30)
        assert refused.value.code == status
        assert orjson.loads(refused.value.read())["error"]


def test_eight_hundred_connections(server: ModelServer, samples: Any, eventually: Any) -> None:
    files = _count_files(server)
    inputs, outputs = samples

    async def ask(row: int) -> None:
        async with Client(server.port, 0, "digits", timeout=60) as client:
            answer, found = await client.ask("v1" if row % 2 else "binary", {"image": inputs[row % 60 :][:1]})
            assert found is not None, answer
            np.testing.assert_allclose(found["output"], outputs[row % 60 :][:1], atol=1e-5)

    async def run() -> None:
        await asyncio.gather(*(ask(row) for row in range(800)))

    asyncio.run(run())
    eventually(lambda: _count_files(server) < files + 20)
