"""Real sockets on one port: earlier connections, other servers, several workers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from mindsporeserver.ports import bind_port, check_port, stop_handshakes


def bind(port: int, *, shared: bool) -> socket.socket:
    return bind_port("--http_port", "127.0.0.1", port, shared=shared)


def leave_connections(server: socket.socket) -> int:
    """Close a server whose connections it has closed first; return its port."""
    server.setblocking(True)
    server.listen()
    port: int = server.getsockname()[1]
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    server.close()
    return port


def count_time_wait(port: int) -> int:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "06" for row in rows)


@pytest.mark.parametrize("before", [False, True], ids=["one", "workers"])
@pytest.mark.parametrize("after", [False, True], ids=["one", "workers"])
def test_port_with_connections_in_time_wait_is_bound_again(before: bool, after: bool) -> None:
    port = leave_connections(bind(0, shared=before))
    assert count_time_wait(port) == 4
    check_port("--http_port", "127.0.0.1", port)
    with bind(port, shared=after) as server:
        server.listen()


@pytest.mark.parametrize("other", [False, True], ids=["one", "workers"])
def test_port_of_listening_server_is_refused(other: bool) -> None:
    with bind(0, shared=other) as server:
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"--http_port: port {port} cannot be used on 127.0.0.1: Address already"):
            check_port("--http_port", "127.0.0.1", port)


def test_workers_share_port() -> None:
    with bind(0, shared=True) as parent:
        port = parent.getsockname()[1]
        for _ in range(2):
            with bind(port, shared=True) as first, bind(port, shared=True) as second:
                first.listen()
                second.listen()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has socket filters")
def test_listener_without_handshakes_completes_its_queue_only() -> None:
    with bind(0, shared=False) as listener, socket.socket() as late:
        listener.listen()
        with socket.create_connection(listener.getsockname()) as queued:
            stop_handshakes(listener)
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.connect(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                queued.sendall(b"request")
                assert accepted.recv(9) == b"request"
                accepted.sendall(b"response")
            assert queued.recv(9) == b"response"
            assert queued.recv(9) == b""
        with pytest.raises(BlockingIOError):
            listener.accept()
