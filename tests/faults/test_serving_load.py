"""A model server under overload, and under all kinds of requests at once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.serving.model_servers import ModelServer, ask_runners
from tests.support.serving.serving_client import (
    INFER,
    PROTOCOLS,
    Answer,
    Client,
    Connection,
    make_binary,
    make_message,
    read_v2,
)

pytestmark = pytest.mark.mindspore

# The long run of `make fuzz` sets 30.
OVERLOAD_SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "3"))
Serve = Callable[..., ModelServer]
ROWS = 256


class Load:
    """Requests of many rows with known responses.

    Args:
        server: The server.
        inputs: One request's rows.
        outputs: Their outputs.
    """

    def __init__(self, server: ModelServer, inputs: np.ndarray[Any, Any], outputs: np.ndarray[Any, Any]) -> None:
        self.server, self.outputs = server, outputs
        self.body, self.headers = make_binary({"image": inputs}, parameters={"binary_data_output": True})
        self.small, self.small_headers = make_binary({"image": inputs[:1]})
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.sent = 0

    async def ask(self, connection: Connection) -> int:
        self.sent += 1
        answer = await connection.request("POST", "/v2/models/digits/infer", self.body, self.headers)
        self.statuses[answer.status] += 1
        if answer.status == 200:
            if not np.allclose(read_v2(answer)["output"], self.outputs, atol=1e-5):
                self.wrong.append("an accepted request was answered wrongly")
        elif answer.status == 503:
            if not float(answer.headers.get("retry-after", "0")) > 0:
                self.wrong.append("503 without Retry-After")
            if "error" not in answer.json():
                self.wrong.append("503 without a reason")
        else:
            self.wrong.append(f"{answer.status} {answer.body[:200]!r}")
        return answer.status

    async def measure_capacity(self, seconds: float) -> float:
        """Return the requests per second of a few sequential clients."""
        stop, done = time.monotonic() + seconds, 0

        async def work() -> None:
            nonlocal done
            async with Connection(self.server.port) as connection:
                while time.monotonic() < stop:
                    done += await self.ask(connection) == 200

        await asyncio.gather(*(work() for _ in range(4)))
        return done / seconds

    async def offer(self, capacity: float, seconds: float, connections: int = 48) -> float:
        """Send three times the server's rate, without waiting for earlier responses.

        The rate rises with the measured one. Returns the highest rate of responses.
        """
        start, answered = time.monotonic(), self.statuses[200]
        turns = 0

        def find_rate() -> float:
            return max(capacity, (self.statuses[200] - answered) / max(1.0, time.monotonic() - start))

        async def work() -> None:
            nonlocal turns
            async with Connection(self.server.port) as connection:
                turn = start
                while turn < start + seconds:
                    await asyncio.sleep(max(0.0, turn - time.monotonic()))
                    await self.ask(connection)
                    turns += 1
                    # Each connection has its own schedule: late responses do not lower the rate.
                    turn += connections / (3 * find_rate())

        await asyncio.gather(*(work() for _ in range(connections)))
        return find_rate()

    async def measure_latency(self, count: int) -> float:
        """Return the median seconds of single requests, one after the other."""
        seconds = []
        async with Connection(self.server.port) as connection:
            for _ in range(count):
                begun = time.monotonic()
                answer = await connection.request("POST", "/v2/models/digits/infer", self.small, self.small_headers)
                seconds.append(time.monotonic() - begun)
                assert answer.status == 200, answer
        return sorted(seconds)[count // 2]


def test_three_times_load_it_can_hold(models: Path, serve: Serve) -> None:
    server = serve({"digits": models / "free"}, f"--max_queue={ROWS * 8}")
    verified = ModelBundle.open(models / "free").read_verified()
    repeat = -(-ROWS // len(verified))
    inputs = np.concatenate([verified.inputs["image"]] * repeat)[:ROWS]
    outputs = np.concatenate([verified.outputs["output"]] * repeat)[:ROWS]
    load = Load(server.wait_ready(), inputs, outputs)

    async def run() -> None:
        capacity = await load.measure_capacity(1)
        assert load.statuses == {200: load.sent}, load.statuses
        before, memory = await load.measure_latency(50), server.read_memory()
        load.sent = 0
        load.statuses.clear()
        capacity = await load.offer(capacity, OVERLOAD_SECONDS)
        ended = time.monotonic()
        after = await load.measure_latency(25)
        while after > 2 * before + 0.005 and time.monotonic() - ended < 2:
            after = await load.measure_latency(25)
        grown = server.read_memory() - memory
        told = (
            f"capacity {capacity:.0f}/s, offered {load.sent / OVERLOAD_SECONDS:.0f}/s, {dict(load.statuses)}, latency "
            f"{before * 1e3:.1f} ms before and {after * 1e3:.1f} ms after, memory + {grown >> 20} MiB"
        )
        print(told)
        assert not load.wrong, (Counter(load.wrong), told)
        assert load.statuses[200] > 0.3 * capacity * OVERLOAD_SECONDS, told
        assert load.statuses[503] > 0, told
        assert after <= 2 * before + 0.005, told
        assert grown < 128 << 20, told

    asyncio.run(run())
    assert server.is_alive()
    assert server.sum_metric("mindsporeserver_request_failures_total", reason="overload") == load.statuses[503]
    assert "Traceback" not in server.read_log()


def test_thousands_of_requests_of_mixed_sizes_and_protocols(
    models: Path, hard_models: Path, everything: ModelServer, tmp_path: Path
) -> None:
    server = everything
    bundles = {"digits": models / "free", "fixed": models / "fixed", "pair": models / "pair"}
    bundles["tokens"] = hard_models / "tokens"
    questions = _make_questions(models)
    answered = ask_runners({bundles[name]: asked for name, asked in questions.items()}, tmp_path)
    answers = {name: answered[bundles[name]] for name in questions}
    total, connections = 4_000, 64
    chosen = random.Random(11)
    order = [_Question(name, i) for name, asked in questions.items() for i in range(len(asked))]
    plan = iter([(chosen.choice(order), chosen.choice(PROTOCOLS)) for _ in range(total)])
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    prepared: dict[Any, Any] = {}

    async def work() -> None:
        clients = {
            name: Client(server.port, server.grpc_port, name, list(answers[name][0]), timeout=60) for name in questions
        }
        try:
            for question, protocol in plan:
                expected = answers[question.model][question.index]
                client = clients[question.model]
                request = prepared.get((question, protocol))
                if request is None:
                    request = client.prepare(protocol, questions[question.model][question.index])
                    prepared[question, protocol] = request
                answer, found = await client.send(request)
                counts[protocol] += 1
                if found is None:
                    wrong.append(f"{question} {protocol}: {answer.code or answer.status} {answer.body[:200]!r}")
                    continue
                for name, array in expected.items():
                    if found[name].shape != array.shape or not np.allclose(found[name], array, rtol=1e-5, atol=1e-5):
                        wrong.append(f"{question} {protocol}: output {name} is wrong")
        finally:
            for client in clients.values():
                await client.close()

    async def run() -> None:
        await asyncio.gather(*(work() for _ in range(connections)))

    asyncio.run(run())
    assert not wrong, (len(wrong), wrong[:10])
    assert sum(counts.values()) == total
    assert set(counts) == set(PROTOCOLS)


class _Question(NamedTuple):
    model: str
    index: int


def _make_questions(models: Path) -> dict[str, list[dict[str, np.ndarray[Any, Any]]]]:
    generator = np.random.default_rng(6)
    images = np.asarray(ModelBundle.open(models / "free").read_verified().inputs["image"])
    # Sizes from 1 to 100, small ones more often: parsing is the slow part.
    sizes = [int(size) for size in np.exp(np.log(101) * generator.random(120) ** 3)] + [1, 63, 64, 65, 100]

    def pick(rows: int) -> np.ndarray[Any, Any]:
        noise = generator.random((rows, 1, 8, 8), np.float32)
        return images[generator.integers(0, len(images), rows)] * np.float32(0.5) + noise

    return {
        "digits": [{"image": pick(rows)} for rows in sizes],
        "fixed": [{"image": pick(rows)} for rows in sizes[::4]],
        "pair": [
            {
                "values": generator.random((rows, 3), np.float32),
                "index": generator.integers(-(2**20), 2**20, rows, np.int32),
            }
            for rows in sizes[::2]
        ],
        "tokens": [
            {"values": generator.random((rows, int(generator.integers(1, 17))), np.float32)} for rows in sizes[::2]
        ],
    }


BUSY_ROWS = 3072


async def _keep_busy(server: ModelServer) -> asyncio.Task[Answer]:
    """Have the graph compute for some seconds; return when it does."""
    body, headers = make_binary({"image": np.zeros((BUSY_ROWS, 1, 8, 8), np.float32)})

    async def ask() -> Answer:
        async with Connection(server.port, timeout=60) as connection:
            return await connection.request("POST", "/v2/models/digits/infer", body, headers)

    task = asyncio.create_task(ask())
    while not task.done():
        metrics = await asyncio.to_thread(server.read_metrics)
        if metrics.get('mindsporeserver_in_flight{model_name="digits"}'):
            return task
    raise AssertionError(f"it was too quick: {task.result().status} {task.result().body[:200]!r}")


@pytest.fixture(scope="module")
def busy_server(hard_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server of a slow model, so that it can be kept busy."""
    flags = ("--max_queue=100000", "--request_timeout=0.2")
    with ModelServer(tmp_path_factory.mktemp("busy"), {"digits": hard_models / "slow"}, *flags) as server:
        yield server.wait_ready()


_GONE = ("deadline", "cancelled")


def _read_counts(server: ModelServer) -> dict[str, float]:
    found = {
        reason: server.sum_metric("mindsporeserver_request_failures_total", reason=reason)
        for reason in ("deadline", "cancelled", "overload", "error")
    }
    return {**found, "rows": server.sum_metric("mindsporeserver_batch_rows_sum")}


SMALL = np.full((1, 1, 8, 8), 0.5, np.float32)


def test_servers_own_time_limit(busy_server: ModelServer) -> None:
    before = _read_counts(busy_server)

    async def run() -> None:
        busy = await _keep_busy(busy_server)
        body, headers = make_binary({"image": SMALL})
        connections = [Connection(busy_server.port) for _ in range(5)]
        begun = time.monotonic()
        answers = await asyncio.gather(
            *(one.request("POST", "/v2/models/digits/infer", body, headers) for one in connections)
        )
        seconds = time.monotonic() - begun
        assert [answer.status for answer in answers] == [503] * 5, (answers[0], busy.done())
        assert all("deadline of the request passed" in answer.json()["error"] for answer in answers)
        # Not when the graph has time again, but when the time is over.
        assert not busy.done() or seconds < 1
        assert (await busy).status == 200
        await asyncio.gather(*(one.close() for one in connections))

    asyncio.run(run())
    after = _read_counts(busy_server)
    assert after["deadline"] - before["deadline"] == 5
    assert after["rows"] - before["rows"] == BUSY_ROWS, "what nobody waits for was computed"


def test_clients_deadline_and_clients_that_cancel(busy_server: ModelServer, eventually: Any) -> None:
    before = _read_counts(busy_server)
    message = make_message("digits", {"image": SMALL}, raw=True).SerializeToString()

    async def run() -> None:
        async with Client(busy_server.port, busy_server.grpc_port, "digits") as client:
            assert client.grpc is not None
            assert (await client.grpc.call(INFER, message)).code == "OK"
            busy = await _keep_busy(busy_server)
            late = await asyncio.gather(*(client.grpc.call(INFER, message, timeout=0.1) for _ in range(4)))
            assert {answer.code for answer in late} == {"DEADLINE_EXCEEDED"}
            gone = [asyncio.create_task(client.grpc.call(INFER, message)) for _ in range(3)]
            # Long enough for the server to read them, and shorter than its own timeout.
            await asyncio.sleep(0.1)
            for task in gone:
                task.cancel()
            assert not busy.done(), "it was too quick"
            assert (await busy).status == 200
            assert (await client.grpc.call(INFER, message)).code == "OK"

    asyncio.run(run())
    eventually(lambda: busy_server.sum_metric("mindsporeserver_in_flight") == 0)
    counts = _read_counts(busy_server)
    # A call whose time is over before it is sent never arrives.
    assert counts["deadline"] + counts["cancelled"] - before["deadline"] - before["cancelled"] in range(1, 8)
    assert counts["rows"] - before["rows"] == BUSY_ROWS + 2, "what nobody waits for was computed"


def test_clients_that_leave_while_they_wait(busy_server: ModelServer, eventually: Any) -> None:
    before = _read_counts(busy_server)
    body = json.dumps({"instances": SMALL.tolist()}).encode()
    head = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def run() -> None:
        busy = await _keep_busy(busy_server)
        for _ in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", busy_server.port)
            writer.write(head + body)
            await writer.drain()
            writer.close()
        assert not busy.done(), "it was too quick"
        assert (await busy).status == 200

    asyncio.run(run())
    # The server may detect the timeout before it detects the closed connections.
    eventually(lambda: (now := _read_counts(busy_server)) and sum(now[r] - before[r] for r in _GONE) == 10)
    assert _read_counts(busy_server)["rows"] - before["rows"] == BUSY_ROWS, "what nobody waits for was computed"
    assert "Traceback" not in busy_server.read_log()
