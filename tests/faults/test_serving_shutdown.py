"""SIGTERM under clients that keep their connections: no accepted request is lost."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.model_servers import ModelServer
from tests.support.serving_client import INFER, Connection, GrpcConnection, make_message

pytestmark = pytest.mark.mindspore

IMAGE = np.full((1, 1, 8, 8), 0.5, np.float32)
BODY = json.dumps({"instances": IMAGE.tolist()}).encode()
REQUEST = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


def test_keep_alive_clients_lose_no_request(models: Path, serve: Callable[..., ModelServer]) -> None:
    server = serve({"digits": models / "free"}, "--drain_seconds=5").wait_ready()
    outcomes: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    stopping = asyncio.Event()

    async def send_http() -> None:
        """Send requests on one connection until a response closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while True:
            writer.write(REQUEST)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                outcomes["lost"] += 1
                return
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            outcomes[head.split(b" ", 2)[1].decode()] += 1
            if b"connection: close" in head.lower():
                outcomes["closed"] += 1
                writer.close()
                return

    async def send_grpc() -> None:
        message = make_message("digits", {"image": IMAGE}, raw=True).SerializeToString()
        async with GrpcConnection(server.grpc_port, timeout=5) as connection:
            while True:
                code = (await connection.call(INFER, message)).code
                codes[code] += 1
                if code != "OK" or (stopping.is_set() and server.process.poll() is not None):
                    return

    async def run() -> None:
        http = [asyncio.create_task(send_http()) for _ in range(8)]
        rpc = [asyncio.create_task(send_grpc()) for _ in range(4)]
        await asyncio.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        stopping.set()
        await asyncio.gather(*http)
        # A load balancer may still open connections.
        await send_http()
        await asyncio.gather(*rpc)

    asyncio.run(run())
    assert server.process.wait(40) == 0
    assert (outcomes["lost"], outcomes["closed"]) == (0, 9), outcomes
    assert set(outcomes) == {"200", "closed"}
    # The clients wait for the server to come back until their deadline.
    assert set(codes) <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}, codes
    assert "Traceback" not in server.read_log()


def test_a_half_closed_client_gets_its_response(models: Path, serve: Callable[..., ModelServer]) -> None:
    server = serve({"digits": models / "free"}).wait_ready()

    async def run() -> None:
        async with Connection(server.port) as connection:
            assert (await connection.send(REQUEST, last=True)).status == 200

    asyncio.run(run())
