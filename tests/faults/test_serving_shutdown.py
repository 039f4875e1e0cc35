"""SIGTERM under clients that keep their connections: no accepted request is lost."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.serving.model_servers import ModelServer
from tests.support.serving.serving_client import INFER, Connection, GrpcConnection, make_message

pytestmark = pytest.mark.mindspore

IMAGE = np.full((1, 1, 8, 8), 0.5, np.float32)
BODY = json.dumps({"instances": IMAGE.tolist()}).encode()
REQUEST = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.mark.parametrize("drain", [0, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_clients_that_connect_again_lose_no_request(
    models: Path, serve: Callable[..., ModelServer], eventually: Callable[..., Any], workers: int, drain: int
) -> None:
    server = serve({"digits": models / "free"}, f"--drain_seconds={drain}", f"--workers={workers}").wait_ready()
    eventually(lambda: server.read_log().count(" ready in ") == workers, 120)
    outcomes: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    served: set[int] = set()
    stopping = asyncio.Event()

    async def send_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return whether the connection stays open."""
        writer.write(REQUEST)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            outcomes["lost"] += 1
            return False
        outcomes[head.split(b" ", 2)[1].decode()] += 1
        return b"connection: close" not in head.lower()

    async def send_http(number: int) -> None:
        """Send requests, on a new connection whenever a response closes one, until a connection is refused."""
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            except OSError:
                return
            while await send_one(reader, writer):
                served.add(number)
            outcomes["closed"] += 1
            writer.close()

    async def send_grpc() -> None:
        message = make_message("digits", {"image": IMAGE}, raw=True).SerializeToString()
        async with GrpcConnection(server.grpc_port, timeout=5) as connection:
            while not (stopping.is_set() and server.process.poll() is not None):
                code = (await connection.call(INFER, message)).code
                codes[code] += 1

    async def run() -> None:
        http = [asyncio.create_task(send_http(number)) for number in range(64)]
        rpc = [asyncio.create_task(send_grpc()) for _ in range(8)]
        while len(served) < 64 or not codes["OK"]:
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        stopping.set()
        await asyncio.wait_for(asyncio.gather(*http, *rpc), 60)

    asyncio.run(run())
    assert server.process.wait(40) == 0
    assert set(outcomes) == {"200", "closed"}, outcomes
    assert outcomes["closed"] >= 64
    assert "OK" in codes
    # Some clients wait for the server to come back until their deadline.
    assert set(codes) <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}, codes
    assert "Traceback" not in server.read_log()


def test_half_closed_client_gets_its_response(models: Path, serve: Callable[..., ModelServer]) -> None:
    server = serve({"digits": models / "free"}).wait_ready()

    async def run() -> None:
        async with Connection(server.port) as connection:
            assert (await connection.send(REQUEST, last=True)).status == 200

    asyncio.run(run())
