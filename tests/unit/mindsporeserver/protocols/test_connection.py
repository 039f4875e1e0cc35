"""A real uvicorn server with small limits, and clients that never come to the point."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvicorn
import uvloop

from mindsporeserver.protocols.connection import GuardedProtocol, answer_at_once, refuse_rest

LEAST = 0.3
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
TEXT = [(b"content-type", b"text/plain")]
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


class SmallProtocol(GuardedProtocol):
    max_header_bytes = 4096
    header_seconds = LEAST
    linger_seconds = 5 * LEAST
    linger_bytes = 8 << 20


class PatientProtocol(SmallProtocol):
    linger_seconds = 60.0


class Surplus:
    """Says to give up each connection once it had a request."""

    def take_surplus(self) -> bool:
        return True


class GenerousProtocol(SmallProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.listener: Any = Surplus()


class QuietServer(uvicorn.Server):  # type: ignore[misc]
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Site:
    """A server whose application tells how long the body was, and counts."""

    def __init__(self, kind: type[GuardedProtocol]) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.asked = 0
        self.at_once: list[bool] = []
        self.refused: list[bool] = []
        config = uvicorn.Config(
            self.answer,
            interface="asgi3",
            http=kind,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=60,
        )
        self.server = QuietServer(config)

    async def answer(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        self.asked += 1
        size = 0
        if scope["path"] == "/unknown":
            self.refused.append(refuse_rest(send, 404, TEXT, b"unknown", may_stay=True))
            if not self.refused[-1]:
                await send(
                    {"type": "http.response.start", "status": 404, "headers": [*TEXT, (b"content-length", b"7")]}
                )
                await send({"type": "http.response.body", "body": b"unknown"})
            return
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            if scope["path"] == "/refused":
                self.refused.append(refuse_rest(send, 413, TEXT, b"too much"))
                if self.refused[-1]:
                    return
            if not message["more_body"]:
                break
        body = b"%d" % size
        if scope["path"] == "/at-once":
            self.at_once.append(answer_at_once(send, [(b"content-type", b"text/plain")], body))
            if self.at_once[-1]:
                return
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Site]:
        serving = asyncio.create_task(self.server.serve(sockets=[self.socket]))
        try:
            yield self
        finally:
            self.server.should_exit = True
            await serving

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


Play = Callable[..., None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    loop = request.param()

    def play(story: Callable[[Site], Awaitable[None]], kind: type[GuardedProtocol] = SmallProtocol) -> None:
        async def run() -> None:
            async with Site(kind).open() as site:
                await asyncio.wait_for(story(site), 60)

        loop.run_until_complete(run())

    yield play
    loop.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return head, await reader.readexactly(int(length.partition(b":")[2]))


async def flood(writer: asyncio.StreamWriter, chunk: bytes, most: int = 30_000_000) -> int:
    """Send until the server has enough of it; return how much that was."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most and not writer.transport.is_closing():
            writer.write(chunk)
            await writer.drain()
            sent += len(chunk)
            await asyncio.sleep(0)
    return sent


@pytest.mark.parametrize(
    ("begin", "chunk"),
    [
        (GET, b"X-A: " + b"a" * 90 + b"\r\n"),
        (GET + b"X-A: ", b"a" * 100),
        (GET, b"a" * 100),
        (b"GET /", b"a" * 100),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"X-A: " + b"a" * 90 + b"\r\n"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-A: ", b"a" * 100),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 100),
        (b"", b"\r\n" * 50),
        (GET + b"\r\n", b"\r\n" * 50),
    ],
    ids=["headers", "value", "name", "url", "trailers", "trailer", "extension", "lines", "lines between"],
)
def test_what_never_ends_is_refused_before_it_is_large(play: Play, begin: bytes, chunk: bytes) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(begin)
        await writer.drain()
        answers = asyncio.create_task(reader.read())
        # What waits in the sockets' buffers was not read by anyone.
        assert await flood(writer, chunk) < 25_000_000
        with contextlib.suppress(ConnectionError):
            answer = await answers
            assert b"400 Bad Request" in answer or answer == b""
        writer.close()
        await ask_well(site)

    play(story)


async def ask_well(site: Site) -> None:
    reader, writer = await site.connect()
    writer.write(GET + b"Connection: close\r\n\r\n")
    assert (await read_answer(reader))[1] == b"0"
    writer.close()


def test_the_refusal_says_why(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(GET)
        await writer.drain()
        # The piece that begins a message may be as long as it likes.
        for lines in (42, 2):
            await asyncio.sleep(LEAST / 10)
            writer.write((b"X-A: " + b"a" * 90 + b"\r\n") * lines)
            await writer.drain()
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert body == b"Headers must have at most 4096 bytes."
        assert await reader.read() == b""
        assert site.asked == 0
        writer.close()

    play(story)


@pytest.mark.parametrize(
    ("begin", "chunk"),
    [(b"", b""), (b"", b"\r"), (b"", b"G"), (GET, b""), (GET, b"X: a\r\n"), (GET + b"X:", b"a")],
    ids=["silence", "lines", "method", "half", "headers", "value"],
)
def test_what_trickles_is_closed_in_time(play: Play, begin: bytes, chunk: bytes) -> None:
    async def story(site: Site) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await site.connect()
        start = loop.time()
        writer.write(begin)
        closed = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            while not closed.done():
                writer.write(chunk)
                await writer.drain()
                await asyncio.wait([closed], timeout=0.05)
            if b"400" in await closed:
                assert chunk == b"G"
                return
        assert loop.time() - start >= LEAST * 0.9
        assert site.asked == 0
        writer.close()

    play(story)


def test_a_line_feed_after_an_answer_does_not_hold_the_connection_for_ever(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(GET + b"\r\n")
        await read_answer(reader)
        writer.write(b"\r\n")
        assert await reader.read() == b""
        writer.close()

    play(story)


def test_connections_that_wait_between_requests_stay(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
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
        assert site.asked == 7
        writer.close()

    play(story)


def test_bodies_have_other_limits(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
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

    play(story)


def test_requests_in_one_piece(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        one = POST + b"Content-Length: 5000\r\n\r\n" + b"a" * 5000
        writer.write(one * 20 + GET[:10])
        for _ in range(20):
            assert (await read_answer(reader))[1] == b"5000"
        writer.write(GET[10:] + b"\r\n")
        assert (await read_answer(reader))[1] == b"0"
        writer.close()

    play(story)


def test_a_connection_that_another_worker_should_have_ends_after_its_answer(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(GET + b"\r\n")
        head, body = await read_answer(reader)
        assert (b"connection: close" in head.lower(), body) == (True, b"0")
        assert await reader.read() == b""
        writer.close()

    play(story, GenerousProtocol)


def test_what_is_no_http_is_refused(play: Play) -> None:
    async def story(site: Site) -> None:
        for content in (b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", GET + b"Content-Length: -1\r\n\r\n", b"\0" * 100):
            reader, writer = await site.connect()
            writer.write(content)
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()
        await ask_well(site)

    play(story)


UNKNOWN = b"POST /unknown HTTP/1.1\r\nHost: a\r\n"
REFUSED = b"POST /refused HTTP/1.1\r\nHost: a\r\n"


def send_all_then_read(port: int, content: bytes) -> bytes:
    """Send like most clients do: all of it, without a look at what comes back before."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(content)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("content", "status", "body"),
    [
        (REFUSED + b"Content-Length: 7000000\r\n\r\n" + b"a" * 7_000_000, b"413", b"too much"),
        (
            REFUSED + b"Transfer-Encoding: chunked\r\n\r\n" + b"186a0\r\n%b\r\n" % (b"a" * 100_000) * 70,
            b"413",
            b"too much",
        ),
        (GET + b"X-A: 1\r\n" * 800_000, b"400", b"Headers must have at most 4096 bytes."),
        (b"nonsense\r\n" * 700_000, b"400", b"Invalid HTTP request received."),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n" + b"nonsense\r\n" * 700_000,
            b"400",
            b"Invalid HTTP request received.",
        ),
        (
            UNKNOWN + b"Connection: close\r\nContent-Length: 7000000\r\n\r\n" + b"a" * 7_000_000,
            b"404",
            b"unknown",
        ),
    ],
    ids=["length", "chunks", "headers", "nonsense", "a bad chunk", "not read"],
)
def test_who_sends_all_before_reading_is_told_why_it_is_refused(
    play: Play, content: bytes, status: bytes, body: bytes
) -> None:
    async def story(site: Site) -> None:
        answer = await asyncio.to_thread(send_all_then_read, site.port, content)
        head, _, found = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %b " % status)
        assert b"connection: close" in head.split(b"\r\n")
        assert found == body
        await wait_until_left(site)
        await ask_well(site)

    play(story, PatientProtocol)


def test_a_connection_that_stays_takes_the_rest_of_a_body_that_nobody_reads(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        for size in (7_000_000, 3):
            writer.write(UNKNOWN + b"Content-Length: %d\r\n\r\n" % size + b"a" * size)
            assert (await read_answer(reader))[1] == b"unknown"
        assert site.refused == [False, False]
        writer.close()

    play(story)


def test_a_server_that_ends_lets_who_is_refused_read_why(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(REFUSED + b"Content-Length: 4000000\r\n\r\n" + b"a" * 1_000_000)
        while not site.refused:
            await asyncio.sleep(0.005)
        site.server.should_exit = True
        # Where uvicorn closes it, it tells the connections, too.
        while site.socket.fileno() != -1:
            await asyncio.sleep(0.005)
        writer.write(b"a" * 3_000_000)
        await writer.drain()
        assert (await read_answer(reader))[1] == b"too much"
        writer.close()
        await wait_until_left(site)

    play(story, PatientProtocol)


async def wait_until_left(site: Site) -> None:
    while site.server.server_state.connections:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("pause", [0.0, LEAST / 3, 60.0], ids=["a flood", "a trickle", "silence"])
def test_who_is_refused_does_not_stay(play: Play, pause: float) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"a" * 100_000)
                await writer.drain()
                await asyncio.sleep(pause)

    async def story(site: Site) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await site.connect()
        writer.write(REFUSED + b"Content-Length: 4000000000\r\n\r\n")
        start = loop.time()
        sending = asyncio.create_task(send(writer))
        assert (await read_answer(reader))[1] == b"too much"
        assert await reader.read() == b""
        await wait_until_left(site)
        stayed = loop.time() - start
        if pause:
            assert stayed >= LEAST * 4.9
        sending.cancel()
        writer.close()

    play(story)


def test_nothing_after_what_is_refused_is_a_request(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(REFUSED + b"Content-Length: 10\r\n\r\nabc")
        assert (await read_answer(reader))[1] == b"too much"
        writer.write(b"defghij" + GET + b"\r\n")
        assert await reader.read() == b""
        assert site.asked == 1
        writer.close()
        await wait_until_left(site)

    play(story)


def test_what_arrived_in_whole_is_refused_in_the_ordinary_way(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(REFUSED + b"Content-Length: 3\r\n\r\nabc" + GET + b"\r\n")
        for _ in range(2):
            await read_answer(reader)
        assert (site.refused, site.asked) == ([False], 2)
        writer.close()

    play(story)


def test_who_left_is_not_answered(play: Play) -> None:
    async def story(site: Site) -> None:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", site.port)) as client:
                client.sendall(REFUSED + b"Content-Length: 10\r\n\r\nabc")
                # Closes with a reset.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0)
        await wait_until_left(site)
        await ask_well(site)

    play(story)


def test_an_answer_at_once_is_the_ordinary_one(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        answers = set()
        for path in (b"/", b"/at-once") * 3:
            writer.write(POST.replace(b"/", path, 1) + b"Content-Length: 3\r\n\r\nabc")
            head, body = await read_answer(reader)
            answers.add((re.sub(rb"(?m)^date: .*$", b"date", head), body))
        assert len(answers) == 1
        assert site.at_once == [True] * 3
        writer.close()

    play(story)


def test_answers_at_once_to_requests_in_one_piece(play: Play) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        for count in range(1, 21):
            writer.write(POST.replace(b"/", b"/at-once", 1) + b"Content-Length: %d\r\n\r\n" % count + b"a" * count)
        assert [(await read_answer(reader))[1] for _ in range(20)] == [b"%d" % count for count in range(1, 21)]
        assert site.at_once == [True] * 20
        writer.close()

    play(story)


@pytest.mark.parametrize("begin", [b"GET /at-once HTTP/1.0\r\n", b"GET /at-once HTTP/1.1\r\nConnection: close\r\n"])
def test_a_connection_that_ends_is_left_to_uvicorn(play: Play, begin: bytes) -> None:
    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(begin + b"\r\n")
        head, body = await read_answer(reader)
        assert (b"connection: close" in head.lower(), body, site.at_once) == (True, b"0", [False])
        assert await reader.read() == b""
        writer.close()

    play(story)


def test_what_is_not_uvicorns_is_not_written_to() -> None:
    async def send(message: Any) -> None:
        raise AssertionError(message)

    assert not answer_at_once(send, [], b"")
    assert not answer_at_once(Surplus().take_surplus, [], b"")
    assert not refuse_rest(send, 413, [], b"")
