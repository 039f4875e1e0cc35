"""Two listeners of one socket, as two workers have them, with real connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mindsporeserver.ports import bind_http
from mindsporeserver.workers import listener as listener_module
from mindsporeserver.workers.listener import ConnectionCounts, Listener


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[ConnectionCounts]:
    with ConnectionCounts.create(tmp_path / "connections", 2) as created:
        yield created


@pytest.fixture
def shared() -> Iterator[socket.socket]:
    with bind_http("127.0.0.1", 0) as bound:
        yield bound


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return request.param  # type: ignore[no-any-return]


class Worker:
    """What a worker does with its connections: says hello, and keeps them."""

    def __init__(self, shared: socket.socket, counts: ConnectionCounts, index: int, **options: Any) -> None:
        self.socket = shared.dup()
        self.socket.setblocking(False)
        self.open: set[asyncio.BaseTransport] = set()
        self.listener = Listener(
            self.socket, self._make, count_open=lambda: len(self.open), counts=counts, index=index, **options
        )

    def _make(self) -> asyncio.Protocol:
        worker = self

        class Hello(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                worker.open.add(transport)
                self.transport = transport
                transport.write(b"hello")  # type: ignore[attr-defined]

            def connection_lost(self, _: Exception | None) -> None:
                worker.open.discard(self.transport)

        return Hello()

    async def close(self) -> None:
        self.listener.close()
        self.listener.close()
        await self.listener.wait_closed()
        for transport in self.open:
            transport.close()
        self.socket.close()


async def connect(shared: socket.socket) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(*shared.getsockname())
    assert await reader.readexactly(5) == b"hello"
    return writer


def test_each_gets_half_of_a_crowd(shared: Any, counts: ConnectionCounts, run: Any) -> None:
    async def main() -> None:
        workers = [Worker(shared, counts, index) for index in range(2)]
        clients = await asyncio.gather(*(connect(shared) for _ in range(64)))
        assert all(abs(len(worker.open) - 32) <= 2 for worker in workers), [len(worker.open) for worker in workers]
        for client in clients:
            client.close()
        for worker in workers:
            await worker.close()

    run(main())


def test_a_worker_that_does_not_accept_costs_the_others_little(shared: Any, counts: ConnectionCounts, run: Any) -> None:
    async def main() -> None:
        # As a worker that hangs: it says that it accepts, and does not.
        counts.set(1, 0)
        worker = Worker(shared, counts, 0)
        clients = await asyncio.wait_for(asyncio.gather(*(connect(shared) for _ in range(50))), 60)
        assert len(worker.open) == 50
        for client in clients:
            client.close()
        await worker.close()

    run(main())


def test_surplus_is_given_away_until_both_have_as_many(
    shared: Any, counts: ConnectionCounts, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_COMPARE_SECONDS", 0.01)

    async def main() -> None:
        first = Worker(shared, counts, 0)
        clients = [await connect(shared) for _ in range(12)]
        await asyncio.sleep(0.05)
        # Alone, or with one that has nearly as many, it keeps what it has.
        assert not first.listener.take_surplus()
        counts.set(1, 11)
        await asyncio.sleep(0.05)
        assert not first.listener.take_surplus()
        counts.close_worker(1)
        second = Worker(shared, counts, 1)
        await asyncio.sleep(0.05)
        assert not second.listener.take_surplus()
        given = 0
        while first.listener.take_surplus():
            given += 1
        assert given == 6
        for worker in (first, second):
            await worker.close()
        assert not first.listener.take_surplus()
        for client in clients:
            client.close()

    run(main())


def test_counts_say_who_accepts(counts: ConnectionCounts, tmp_path: Path) -> None:
    assert counts.find_lowest() == 0
    with ConnectionCounts(tmp_path / "connections") as other:
        other.set(0, 7)
        assert counts.find_lowest() == 7
        counts.set(1, 3)
        assert other.find_lowest() == 3
        counts.close_worker(1)
        assert other.find_lowest() == 7


def test_no_descriptors_left_is_a_pause(
    shared: Any, counts: ConnectionCounts, run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_PAUSE_SECONDS", 0.05)
    failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError(), BlockingIOError()]

    class Exhausted(socket.socket):
        def accept(self) -> Any:
            if failures:
                raise failures.pop(0)
            return super().accept()

    async def main() -> None:
        worker = Worker(Exhausted(fileno=shared.dup().detach()), counts, 0)
        worker.listener.close()
        exhausted = Exhausted(fileno=shared.dup().detach())
        exhausted.setblocking(False)
        worker.listener = Listener(exhausted, worker._make, count_open=lambda: len(worker.open), counts=counts, index=0)
        client = await asyncio.wait_for(connect(shared), 60)
        assert not failures
        client.close()
        await worker.close()
        exhausted.close()

    with caplog.at_level(logging.ERROR):
        run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "no connection can be accepted for 0.05 s: Too many open files"
    ]


def test_handshakes_that_fail_or_never_end_leave_others_alone(
    shared: Any, counts: ConnectionCounts, run: Any, certificate: tuple[Path, Path]
) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*certificate)
    client_side = ssl.create_default_context()
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        worker = Worker(shared, counts, 0, context=server_side)
        address = shared.getsockname()
        # One says nothing, one speaks no TLS, one is reset at once.
        _, silent = await asyncio.open_connection(*address)
        reader, plain = await asyncio.open_connection(*address)
        plain.write(b"GET / HTTP/1.1\r\n\r\n")
        while await reader.read(1000):
            pass
        with socket.create_connection(address) as reset:
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader, writer = await asyncio.open_connection(*address, ssl=client_side)
        assert await reader.readexactly(5) == b"hello"
        for open_writer in (silent, plain, writer):
            open_writer.close()
        await worker.close()

    run(main())


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now.replace(year=2099))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for file, content in zip(files, (signed, pem), strict=True):
        file.write_bytes(content)
    return files
