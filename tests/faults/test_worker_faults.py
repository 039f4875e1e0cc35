"""Servers of two workers that are killed, reloaded and told what to serve, under clients that compare every answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.local.process import ProcessIdentity
from tests.faults.test_serving_bundles import damage, put
from tests.support.model_servers import ModelServer, ask_runners
from tests.support.serving_client import PROTOCOLS, Answer, Client, Connection

pytestmark = pytest.mark.mindspore

Serve = Callable[..., ModelServer]
Eventually = Callable[..., Any]
Answers = dict[str, "np.ndarray[Any, Any]"]

IMAGES = np.random.default_rng(9).random((24, 1, 8, 8), np.float32)
CLIENTS = 8
KILLS = int(os.environ.get("KILLS", "2"))
RELOADED = "model digits: changed on disk, and served so"
WORKERS = ("--workers=2", "--reload_interval=0.1")


@pytest.fixture(scope="module")
def answers(hard_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    questions = {hard_models / name: [{"image": IMAGES}] for name in ("a", "b")}
    found = ask_runners(questions, tmp_path_factory.mktemp("runner"))
    return {path.name: answers[0]["output"] for path, answers in found.items()}


@pytest.fixture
def place(hard_models: Path, tmp_path: Path) -> Path:
    """A model directory that a test may change; it holds model a."""
    path = tmp_path / "live" / "model"
    put(hard_models / "a", path)
    return path


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def count_ready(server: ModelServer) -> int:
    return server.read_log().count(") is ready")


def wait_for_workers(server: ModelServer, eventually: Eventually, count: int = 2) -> None:
    """Wait until so many workers were ready since the start."""
    eventually(lambda: count_ready(server) >= count or not server.is_alive(), 120)
    assert server.is_alive(), server.read_log()[-3000:]


def list_workers(server: ModelServer) -> list[int]:
    """Return the process numbers of the workers, oldest first."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return sorted(int(pid) for pid in children.split())


class _Once(Connection):
    """A connection that sends nothing twice: a request that is lost shows."""

    async def send(self, content: bytes, *, is_head: bool = False, last: bool = False) -> Answer:
        reader, writer = await self.open()
        try:
            writer.write(content)
            answer = await asyncio.wait_for(self._read(reader, is_head), self.timeout)
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.close()
            return Answer(0)
        if answer.headers.get("connection", "").lower() == "close":
            await self.close()
        return answer


async def tell_which(client: Client, answers: Answers, index: int) -> str:
    """Ask for one row or three; say whose answer came, `lost`, or what else did."""
    row = index % 21
    part = slice(row, row + (1 if index % 4 else 3))
    answer, found = await client.ask(PROTOCOLS[index % len(PROTOCOLS)], {"image": IMAGES[part]})
    if found is None:
        gone = answer.code == "UNAVAILABLE" or (not answer.code and not answer.status)
        return "lost" if gone else f"{answer.code or answer.status} {answer.details}{answer.body[:200]!r}"
    for name, expected in answers.items():
        if found["output"].shape == expected[part].shape and np.allclose(found["output"], expected[part], atol=1e-5):
            return name
    return "neither"


@asynccontextmanager
async def load(server: ModelServer, answers: Answers, killed: Collection[int] = ()) -> AsyncIterator[Counter[str]]:
    """Have clients ask in every protocol, over connections that they keep; count what came.

    Args:
        server: Who is asked.
        answers: The right answers by their names.
        killed: Workers that are killed meanwhile. The kernel closes their sockets one after the other, so that who has
            lost a request asks again when they are gone.
    """
    seen: Counter[str] = Counter()
    over = False

    async def work(worker: int) -> None:
        async with Client(server.port, server.grpc_port, "digits") as client:
            client.http = _Once(server.port)
            index = worker
            while not over:
                found = await tell_which(client, answers, index)
                seen[found] += 1
                index += 1
                if found == "lost" and killed:
                    await wait(lambda: not set(killed) & set(list_workers(server)))
                    await client.http.close()

    workers = [asyncio.create_task(work(worker)) for worker in range(CLIENTS)]
    try:
        yield seen
    finally:
        over = True
        await asyncio.gather(*workers)


async def wait(look: Callable[[], Any], seconds: float = 120.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if look():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


async def ask_both(server: ModelServer, target: str) -> set[int]:
    """Return the statuses of a GET over connections that are spread over both workers."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(server.port)) for _ in range(8)]
        # All are open at once before the second question, and so shared out evenly.
        for _ in range(2):
            found = [(await connection.get(target)).status for connection in connections]
        return set(found)


def test_killed_workers_lose_what_they_had_in_flight_and_nothing_else(
    hard_models: Path, serve: Serve, eventually: Eventually, answers: Answers
) -> None:
    server = serve({"digits": hard_models / "a"}, *WORKERS).wait_ready()
    wait_for_workers(server, eventually)

    async def run() -> Counter[str]:
        killed: list[int] = []
        async with load(server, answers, killed) as seen:
            for kill in range(KILLS):
                before = seen["a"]
                await wait(lambda before=before: seen["a"] > before + 100)
                killed.append(list_workers(server)[0])
                os.kill(killed[-1], signal.SIGKILL)
                await wait(lambda kill=kill: count_ready(server) >= 3 + kill)
            before = seen["a"]
            await wait(lambda: seen["a"] > before + 100)
        return seen

    seen = asyncio.run(run())
    assert set(seen) <= {"a", "lost"}, seen
    # A client has one request in flight at a time.
    assert seen["lost"] <= KILLS * CLIENTS
    # What a killed worker had counted still counts: as many as were answered, and maybe some whose answer was lost.
    counted = server.sum_metric("mindsporeserver_requests_total", model_name="digits")
    assert seen["a"] <= counted <= seen["a"] + seen["lost"]
    assert server.sum_metric("mindsporeserver_in_flight") == 0
    assert server.sum_metric("mindsporeserver_request_failures_total") == 0
    assert server.stop() == 0
    assert "Traceback" not in server.read_log()


def test_a_changed_bundle_reaches_all_workers_without_a_lost_request(
    hard_models: Path, place: Path, serve: Serve, tmp_path: Path, eventually: Eventually, answers: Answers
) -> None:
    server = serve({"digits": place}, *WORKERS).wait_ready()
    wait_for_workers(server, eventually)

    async def run() -> None:
        async with load(server, answers) as seen:
            for turn, name in enumerate("bab"):
                await asyncio.to_thread(put, hard_models / name, place)
                await wait(lambda turn=turn: server.read_log().count(RELOADED) > turn)
                # What was asked from now on is answered by the new one, whichever worker is asked.
                await asyncio.sleep(0.2)
                seen.clear()
                await wait(lambda: sum(seen.values()) > 100)
                assert set(seen) == {name}, seen
            broken = tmp_path / "broken"
            await asyncio.to_thread(put, hard_models / "a", broken)
            damage(broken, "signed garbage")
            await asyncio.to_thread(put, broken, place)
            await wait(lambda: "model digits: changed on disk, but what was served stays" in server.read_log())
            seen.clear()
            await wait(lambda: sum(seen.values()) > 100)
            assert set(seen) == {"b"}, seen

    asyncio.run(run())
    assert len(list_workers(server)) == 2
    # Each worker loaded three times after its start; one alone found out what is wrong with the fourth.
    assert server.sum_metric("mindsporeserver_loads_total", result="ok") == 2 * 4
    assert server.sum_metric("mindsporeserver_loads_total", result="failed") == 1
    assert server.stop() == 0
    assert "Traceback" not in server.read_log()


def test_load_and_unload_act_on_all_workers_and_on_those_that_come_later(
    hard_models: Path, models: Path, serve: Serve, eventually: Eventually, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    put(hard_models / "a", repository / "digits")
    put(models / "pair", repository / "pair")
    flags = ("--workers=2", "--reload_interval=0")
    server = serve({"fixed": models / "fixed"}, f"--model_repository={repository}", *flags).wait_ready()
    wait_for_workers(server, eventually)

    def ready(name: str) -> set[int]:
        return asyncio.run(ask_both(server, f"/v2/models/{name}/ready"))

    assert server.post("/v2/repository/models/pair/unload")[0] == 200
    assert (ready("pair"), ready("digits"), ready("fixed")) == ({404}, {200}, {200})
    put(hard_models / "b", repository / "late")
    assert ready("late") == {404}
    assert server.post("/v2/repository/models/late/load")[0] == 200
    assert ready("late") == {200}
    status, body, _ = server.post("/v2/repository/models/nothing/load")
    assert (status, "nothing" in body["error"]) == (404, True)
    index = {entry["name"]: entry["state"] for entry in server.post("/v2/repository/index")[1]}
    assert index == {"digits": "READY", "fixed": "READY", "late": "READY", "pair": "UNAVAILABLE"}

    os.kill(list_workers(server)[-1], signal.SIGKILL)
    wait_for_workers(server, eventually, 3)
    assert {name: ready(name) for name in index} == {"digits": {200}, "fixed": {200}, "late": {200}, "pair": {404}}
    assert server.post("/v2/repository/models/pair/load")[0] == 200
    assert ready("pair") == {200}
    assert server.stop() == 0


def test_models_appear_and_disappear_in_all_workers(
    hard_models: Path, serve: Serve, eventually: Eventually, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    put(hard_models / "a", repository / "digits")
    server = serve({}, f"--model_repository={repository}", *WORKERS).wait_ready()
    wait_for_workers(server, eventually)
    put(hard_models / "b", repository / "late")
    eventually(lambda: asyncio.run(ask_both(server, "/v2/models/late/ready")) == {200})
    (repository / "digits").rename(tmp_path / "away")
    eventually(lambda: asyncio.run(ask_both(server, "/v2/models/digits/ready")) == {404})
    os.kill(list_workers(server)[0], signal.SIGKILL)
    wait_for_workers(server, eventually, 3)
    assert asyncio.run(ask_both(server, "/v2/models/digits/ready")) == {404}
    assert asyncio.run(ask_both(server, "/v2/health/ready")) == {200}


def test_sigterm_answers_what_was_accepted(
    hard_models: Path, serve: Serve, eventually: Eventually, answers: Answers
) -> None:
    server = serve({"digits": hard_models / "slow"}, "--workers=2").wait_ready()
    wait_for_workers(server, eventually)

    async def run() -> list[int]:
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(_Once(server.port)) for _ in range(16)]
            body = {"instances": IMAGES.tolist()}
            warm = [(await connection.post("/v1/models/digits:predict", body)).status for connection in connections]
            assert set(warm) == {200}
            asked = [asyncio.create_task(one.post("/v1/models/digits:predict", body)) for one in connections]
            await wait(lambda: server.sum_metric("mindsporeserver_in_flight") > 0)
            server.process.send_signal(signal.SIGTERM)
            return [(await task).status for task in asked]

    assert asyncio.run(run()) == [200] * 16
    assert server.process.wait(40) == 0
    assert "Traceback" not in server.read_log()


def test_a_mistake_is_told_once(hard_models: Path, serve: Serve, place: Path) -> None:
    damage(place, "a bit")
    server = serve({"digits": place}, "--workers=2")
    assert server.process.wait(90) == 2, server.read_log()
    assert server.read_log().count("Error: ") == 1, server.read_log()
    assert str(place) in server.read_log()
    assert "Traceback" not in server.read_log()


def test_a_taken_port_is_told_by_the_parent(hard_models: Path, serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = serve({"digits": hard_models / "a"}, "--workers=2", f"--http_port={port}")
        assert server.process.wait(30) == 2
    assert f"Error: --http_port: port {port} cannot be used" in server.read_log()


def test_a_killed_parent_leaves_no_worker(hard_models: Path, serve: Serve, eventually: Eventually) -> None:
    server = serve({"digits": hard_models / "a"}, "--workers=2").wait_ready()
    wait_for_workers(server, eventually)
    workers = [ProcessIdentity.of(pid) for pid in list_workers(server)]
    server.process.kill()
    server.process.wait()
    assert len(workers) == 2
    assert all(worker is None or worker.wait(10) for worker in workers)
    # The kernel closes their sockets a moment after they count as gone.
    eventually(lambda: can_bind(server.port), 10)
