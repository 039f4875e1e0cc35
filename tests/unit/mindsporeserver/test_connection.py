"""A real uvicorn server with small limits, and clients that send incomplete requests or close half a connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvicorn
import uvloop

from mindsporeserver.connection import EXTENSION, Connection

LEAST = 0.3
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
WAIT = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
TOO_LARGE = "headers: must have at most 4096 bytes"
INVALID = "Invalid HTTP request received."


class SmallConnection(Connection):
    max_header_bytes = 4096
    header_seconds = LEAST
    linger_seconds = 5 * LEAST
    linger_bytes = 8 << 20
    first_seconds = 5 * LEAST


class QuietServer(uvicorn.Server):  # type: ignore[misc]
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class UvicornServer:
    """A server whose application responds with the length of the body; `/wait` waits for `go` first."""

    def __init__(self, kind: type[Connection] = SmallConnection) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        # Before the server starts: on Python 3.12, wait_for runs the client first.
        self.socket.listen()
        self.port: int = self.socket.getsockname()[1]
        self.requests = self.cancelled = 0
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()
        config = uvicorn.Config(
            self.answer,
            interface="asgi3",
            http=kind,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=2,
        )
        self.uvicorn = QuietServer(config)

    async def answer(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        self.requests += 1
        size = 0
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                break
        if scope["path"] == "/wait":
            connection = scope["extensions"][EXTENSION]
            connection.task = asyncio.current_task()
            self.waiting.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                return
        body = b"%d" % size
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[UvicornServer]:
        serving = asyncio.create_task(self.uvicorn.serve(sockets=[self.socket]))
        checking = asyncio.create_task(self.close_late())
        try:
            yield self
        finally:
            checking.cancel()
            self.uvicorn.should_exit = True
            await serving

    async def close_late(self) -> None:
        while True:
            await asyncio.sleep(LEAST / 10)
            for connection in tuple(self.uvicorn.server_state.connections):
                connection.close_if_late()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


Run = Callable[[Callable[[UvicornServer], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    loop = request.param()

    def run(scenario: Callable[[UvicornServer], Awaitable[None]]) -> None:
        async def main() -> None:
            async with UvicornServer().open() as server:
                await asyncio.wait_for(scenario(server), 300)

        loop.run_until_complete(main())

    yield run
    loop.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return head, await reader.readexactly(int(length.partition(b":")[2]))


async def flood(writer: asyncio.StreamWriter, chunk: bytes, most: int = 30_000_000) -> int:
    """Send until the server closes the connection; return the number of sent bytes."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most and not writer.transport.is_closing():
            writer.write(chunk)
            await writer.drain()
            sent += len(chunk)
            await asyncio.sleep(0)
    return sent


async def assert_serves(server: UvicornServer) -> None:
    reader, writer = await server.connect()
    writer.write(GET + b"Connection: close\r\n\r\n")
    assert (await read_answer(reader))[1] == b"0"
    writer.close()


async def wait_until_closed(server: UvicornServer) -> None:
    while server.uvicorn.server_state.connections:
        await asyncio.sleep(0.01)


def send_all_then_read(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(content)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("begin", "chunk"),
    [
        (GET, b"X-A: " + b"a" * 90 + b"\r\n"),
        (GET + b"X-A: ", b"a" * 100),
        (GET, b"a" * 100),
        (b"GET /", b"a" * 100),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"X-A: " + b"a" * 90 + b"\r\n"),
        (CHUNKED + b"1\r\na\r\n0\r\nX-A: ", b"a" * 100),
        (CHUNKED + b"1;", b"a" * 100),
        (b"", b"\r\n" * 50),
        (GET + b"\r\n", b"\r\n" * 50),
    ],
    ids=["headers", "value", "name", "url", "trailers", "trailer", "extension", "lines", "lines between"],
)
def test_endless_headers_are_refused_before_they_are_large(run: Run, begin: bytes, chunk: bytes) -> None:
    async def scenario(server: UvicornServer) -> None:
        reader, writer = await server.connect()
        writer.write(begin)
        await writer.drain()
        answers = asyncio.create_task(reader.read())
        # Some of it is in the buffers of the sockets.
        assert await flood(writer, chunk) < 25_000_000
        with contextlib.suppress(ConnectionError):
            answer = await answers
            assert answer == b"" or answer.split(b" ", 2)[1] in (b"200", b"400", b"408", b"414", b"431")
        writer.close()
        await assert_serves(server)

    run(scenario)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (GET + b"X-A: " + b"a" * 5000 + b"\r\n\r\n", b"431", TOO_LARGE),
        (GET + (b"X-A: " + b"a" * 90 + b"\r\n") * 50, b"431", TOO_LARGE),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"414", "URL: must have at most 4096 bytes"),
        (b"GET /" + b"a" * 5000, b"414", "URL: must have at most 4096 bytes"),
        (b"hello\r\n\r\n", b"400", INVALID),
        (b"\x16\x03\x01\x02\x00", b"400", INVALID),
        (GET + b"Content-Length: -1\r\n\r\n", b"400", INVALID),
        (CHUNKED + b"5\r\nabcde\r\nnonsense\r\n", b"400", INVALID),
        (GET + b"X-A: 1\r\n" * 800_000, b"431", TOO_LARGE),
        (b"nonsense\r\n" * 700_000, b"400", INVALID),
        (b"GET / HTTP/1.1\r\n\r\n", b"400", "Host: must be given once, got 0"),
        (GET + b"host: b\r\n\r\n", b"400", "Host: must be given once, got 2"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", b"400", "Host: must be given once, got 2"),
    ],
    ids=[
        *("value", "headers", "long URL", "URL", "text", "TLS", "length", "chunk", "large headers", "large text"),
        *("no Host", "two Hosts", "two Hosts of HTTP/1.0"),
    ],
)
def test_parser_refusals_are_json_and_reach_clients_that_send_all_first(
    run: Run, content: bytes, status: bytes, message: str
) -> None:
    async def scenario(server: UvicornServer) -> None:
        answer = await asyncio.to_thread(send_all_then_read, server.port, content)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %b " % status), head
        assert b"connection: close" in head.split(b"\r\n")
        assert json.loads(body) == {"error": message}
        await wait_until_closed(server)
        await assert_serves(server)

    run(scenario)


@pytest.mark.parametrize(
    ("begin", "chunk"),
    [(b"", b""), (b"", b"\r"), (b"", b"G"), (GET, b""), (GET, b"X: a\r\n"), (GET + b"X:", b"a")],
    ids=["silence", "lines", "method", "half", "headers", "value"],
)
def test_incomplete_headers_are_closed_in_time(run: Run, begin: bytes, chunk: bytes) -> None:
    async def scenario(server: UvicornServer) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await server.connect()
        start = loop.time()
        writer.write(begin)
        closed = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            while not closed.done():
                writer.write(chunk)
                await writer.drain()
                await asyncio.wait([closed], timeout=0.05)
            answer = await closed
            if b" 400 " in answer:
                assert chunk == b"G"
                return
            assert answer == b"" or b" 408 " in answer
        assert loop.time() - start >= LEAST * 0.9
        assert server.requests == 0
        writer.close()

    run(scenario)


def test_connections_that_wait_between_requests_stay(run: Run) -> None:
    async def scenario(server: UvicornServer) -> None:
        reader, writer = await server.connect()
        for pause in (0, 1.5 * LEAST, 0, 0.7 * LEAST, 0.7 * LEAST):
            await asyncio.sleep(pause)
            writer.write(POST + b"Content-Length: 3\r\n\r\nabc")
            assert (await read_answer(reader))[1] == b"3"
        writer.write(b"\r\n" + POST)
        await asyncio.sleep(LEAST / 4)
        writer.write(b"Content-Length: 3\r\n\r\nabc")
        assert (await read_answer(reader))[1] == b"3"
        await asyncio.sleep(LEAST)
        writer.write(POST + b"Content-Length: 3\r\n\r\nabc")
        assert (await read_answer(reader))[1] == b"3"
        assert server.requests == 7
        writer.close()

    run(scenario)


def test_bodies_have_other_limits(run: Run) -> None:
    async def scenario(server: UvicornServer) -> None:
        reader, writer = await server.connect()
        writer.write(POST + b"Content-Length: 300000\r\n\r\n")
        writer.write(b"a" * 300_000)
        assert (await read_answer(reader))[1] == b"300000"
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            writer.write(b"400\r\n" + b"a" * 1024 + b"\r\n")
        await asyncio.sleep(1.3 * LEAST)
        writer.write(b"0\r\nX-Trailer: a\r\n\r\n")
        assert (await read_answer(reader))[1] == b"102400"
        writer.close()

    run(scenario)


def test_client_that_half_closes_gets_its_response(run: Run) -> None:
    async def scenario(server: UvicornServer) -> None:
        for version in (b"1.1", b"1.0"):
            reader, writer = await server.connect()
            writer.write(WAIT.replace(b"1.1", version, 1))
            writer.write_eof()
            await server.waiting.wait()
            # Longer than the detection of a closed client.
            await asyncio.sleep(LEAST)
            server.go.set()
            answers = await reader.read()
            # One response, without an interim one that it did not request.
            assert answers.startswith(b"HTTP/1.1 200 OK\r\n")
            assert (answers.count(b"HTTP/1.1"), answers.partition(b"\r\n\r\n")[2]) == (1, b"3")
            server.go.clear()
            server.waiting.clear()
            writer.close()
        await wait_until_closed(server)
        assert server.cancelled == 0

    run(scenario)


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
def test_request_is_cancelled_when_its_client_closes(run: Run, reset: bool) -> None:
    async def scenario(server: UvicornServer) -> None:
        _, writer = await server.connect()
        writer.write(WAIT)
        await server.waiting.wait()
        if reset:
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        while not server.cancelled:
            await asyncio.sleep(0.005)
        await wait_until_closed(server)
        await assert_serves(server)

    run(scenario)


@pytest.mark.parametrize("pause", [0.0, LEAST / 3, 60.0], ids=["a flood", "a trickle", "silence"])
def test_refused_client_does_not_stay(run: Run, pause: float) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"a" * 100_000)
                await writer.drain()
                await asyncio.sleep(pause)

    async def scenario(server: UvicornServer) -> None:
        reader, writer = await server.connect()
        writer.write(b"nonsense\r\n\r\n")
        sending = asyncio.create_task(send(writer))
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 400 ")
        assert await reader.read() == b""
        await wait_until_closed(server)
        assert server.requests == 0
        sending.cancel()
        writer.close()

    run(scenario)


def test_shutdown_completes_requests_that_are_arriving(run: Run) -> None:
    async def scenario(server: UvicornServer) -> None:
        idle, idle_writer = await server.connect()
        reader, writer = await server.connect()
        writer.write(GET)
        while not any(connection._incomplete_bytes for connection in server.uvicorn.server_state.connections):
            await asyncio.sleep(0.005)
        late, late_writer = await server.connect()
        server.uvicorn.should_exit = True
        while server.uvicorn.servers[0].is_serving():
            await asyncio.sleep(0.005)
        writer.write(b"Connection: close\r\n\r\n")
        assert (await read_answer(reader))[1] == b"0"
        late_writer.write(GET + b"Connection: close\r\n\r\n")
        assert (await read_answer(late))[1] == b"0"
        assert await idle.read() == b""
        idle_writer.close()
        late_writer.close()
        writer.close()

    run(scenario)
