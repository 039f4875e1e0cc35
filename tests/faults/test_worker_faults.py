"""Servers of two workers with clients: killed workers, many signals, invalid requests."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.faults.test_serving_bundles import damage, put
from tests.support.ports import reserve_port
from tests.support.serving.model_servers import ModelServer
from tests.support.serving.serving_client import Connection

pytestmark = pytest.mark.mindspore

Serve = Callable[..., ModelServer]
Eventually = Callable[..., Any]
WORKERS = "--workers=2"
BODY = json.dumps({"instances": np.full((1, 1, 8, 8), 0.5).tolist()}).encode()
PREDICT = "/v1/models/digits:predict"


def list_workers(server: ModelServer) -> list[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return sorted(int(pid) for pid in children.split())


def list_early_workers(server: ModelServer) -> list[int]:
    """Return the worker that listens before its models are loaded."""
    return [
        pid for pid in list_workers(server) if re.search(rb"WORKER=\d+:1", Path(f"/proc/{pid}/environ").read_bytes())
    ]


def count_ready(server: ModelServer) -> int:
    return server.read_log().count(" ready in ")


def read_management_port(server: ModelServer) -> int:
    arguments = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
    return next(int(value) for flag, _, value in (item.partition("=") for item in arguments) if "management" in flag)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def pool(hard_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """A server of two workers; the last test with it kills its parent."""
    flags = (WORKERS, "--reload_interval=0.1", f"--management-port={reserve_port()}")
    with ModelServer(tmp_path_factory.mktemp("pool"), {"digits": hard_models / "a"}, *flags) as server:
        yield server.wait_ready()


def test_models_are_fixed_and_stay_served(pool: ModelServer, eventually: Eventually) -> None:
    eventually(lambda: count_ready(pool) == 2, 120)
    managed = f"http://127.0.0.1:{read_management_port(pool)}"
    public = f"http://127.0.0.1:{pool.port}"
    for action in ("load", "unload"):
        path = f"/v2/repository/models/digits/{action}"
        answer = httpx.post(f"{managed}{path}", timeout=60)
        assert (answer.status_code, "the models of a server with --workers are fixed" in answer.text) == (409, True)
        assert httpx.post(f"{public}{path}", timeout=60).status_code == 403
    for _ in range(10):
        answer = httpx.get(f"{managed}/metrics", timeout=60)
        assert (answer.status_code, "mindsporeserver_requests_total" in answer.text) == (200, True)
        assert httpx.get(f"{public}/metrics", timeout=60).status_code == 403
    for _ in range(10):
        assert pool.post(PREDICT, json.loads(BODY))[0] == 200
    eventually(lambda: pool.read_log().count("--reload_interval is 0 with --workers") == 1)


def test_no_worker_listens_before_first_is_ready(hard_models: Path, serve: Serve, eventually: Eventually) -> None:
    server = serve({"digits": hard_models / "a"}, WORKERS)
    (first,) = eventually(lambda: list_early_workers(server), 60)
    os.kill(first, signal.SIGSTOP)
    eventually(lambda: count_ready(server) == 1, 120)
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", server.port)) == errno.ECONNREFUSED
    os.kill(first, signal.SIGCONT)
    server.wait_ready()
    assert [server.post(PREDICT, json.loads(BODY))[0] for _ in range(20)] == [200] * 20


def test_killed_worker_is_replaced_and_other_serves_on(pool: ModelServer, eventually: Eventually) -> None:
    eventually(lambda: count_ready(pool) == 2, 120)
    first, second = list_workers(pool)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: first not in list_workers(pool), 20)

    async def ask() -> list[int]:
        statuses = []
        for _ in range(20):
            async with Connection(pool.port) as connection:
                statuses.append((await connection.request("POST", PREDICT, BODY)).status)
        return statuses

    assert asyncio.run(ask()) == [200] * 20
    eventually(lambda: count_ready(pool) == 3, 120)
    assert second in list_workers(pool)
    assert asyncio.run(ask()) == [200] * 20


def test_killed_parent_leaves_no_worker(pool: ModelServer, eventually: Eventually) -> None:
    workers = list_workers(pool)
    assert len(workers) == 2
    pool.process.kill()
    pool.process.wait()
    eventually(lambda: not any(map(is_alive, workers)), 20)


def test_shutdown_completes_accepted_requests(hard_models: Path, serve: Serve, eventually: Eventually) -> None:
    server = serve({"digits": hard_models / "slow"}, WORKERS).wait_ready()
    eventually(lambda: count_ready(server) == 2, 120)

    async def run() -> list[int]:
        connections = [Connection(server.port) for _ in range(8)]
        # Connections that no worker has accepted yet are reset.
        await asyncio.gather(*(one.get("/v2/health/live") for one in connections))
        tasks = [asyncio.create_task(one.request("POST", PREDICT, BODY)) for one in connections]
        await asyncio.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*tasks)
        for one in connections:
            await one.close()
        return [answer.status for answer in answers]

    assert asyncio.run(run()) == [200] * 8
    assert server.process.wait(40) == 0


def test_mistake_of_start_ends_all_with_exit_code_2(hard_models: Path, tmp_path: Path, serve: Serve) -> None:
    place = tmp_path / "model"
    put(hard_models / "a", place)
    damage(place, "a bit")
    server = serve({"digits": place}, WORKERS)
    assert server.process.wait(60) == 2
    assert str(place) in server.read_log()
    assert "Traceback" not in server.read_log()


def test_port_in_use_is_reported_by_parent(hard_models: Path, serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = serve({"digits": hard_models / "a"}, WORKERS, f"--http_port={port}")
        assert server.process.wait(30) == 2
    assert f"Error: --http_port: port {port} cannot be used" in server.read_log()


def test_restart_on_port_of_earlier_connections(models: Path, tmp_path: Path, eventually: Eventually) -> None:
    ports = reserve_port(), reserve_port()
    close = b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for turn, workers in enumerate((1, 1, 2, 2, 1)):
        flags = (f"--workers={workers}", "--max_batch=1")
        with ModelServer(tmp_path / str(turn), {"digits": models / "free"}, *flags, ports=ports) as server:
            server.wait_ready()
            eventually(lambda: count_ready(server) == workers, 120)  # noqa: B023
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", server.port)) as client:
                    client.sendall(close)
                    assert b"".join(iter(lambda: client.recv(4096), b"")).startswith(b"HTTP/1.1 200 OK")
            # The server closes first: its ends stay in TIME_WAIT for a minute.
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            assert sum(row[1].endswith(f":{server.port:04X}") and row[3] == "06" for row in rows) >= 20
            assert server.stop() == 0
