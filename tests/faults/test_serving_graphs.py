"""Graphs that raise on an input: its client gets an error, and no other is affected."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.serving.model_servers import ModelServer
from tests.support.serving.serving_client import Client

pytestmark = pytest.mark.mindspore


LONG = "OVERLOAD_SECONDS" in os.environ
PROTOCOLS = ("v1", "v2", "binary", "grpc")


@pytest.fixture
def server(everything: ModelServer) -> ModelServer:
    return everything


@pytest.mark.parametrize("name", ["lookup", "unranged"])
def test_index_outside_its_table_is_refused_before_graph(server: ModelServer, hard_models: Path, name: str) -> None:
    verified = ModelBundle.open(hard_models / name).read_verified()
    parts = [slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 7), slice(7, 12)]
    questions = [{"ids": np.asarray(verified.inputs["ids"])[part]} for part in parts]
    answers = [verified.outputs["output"][part] for part in parts]
    bad = {"ids": np.array([[1, 2, 1_000_000]], np.int32)}
    wrong: list[str] = []
    over = False

    async def ask_well(worker: int) -> int:
        count = 0
        async with Client(server.port, server.grpc_port, name, timeout=60) as client:
            while not over or count < 20:
                index = (worker + count) % len(questions)
                protocol = PROTOCOLS[count % len(PROTOCOLS)]
                answer, found = await client.ask(protocol, questions[index])
                if found is None:
                    wrong.append(f"{protocol}: {answer.code or answer.status} {answer.details}{answer.body[:300]!r}")
                elif not np.allclose(found["output"], answers[index], atol=1e-5):
                    wrong.append(f"{protocol}: another answer")
                count += 1
        return count

    async def run() -> None:
        nonlocal over
        workers = [asyncio.create_task(ask_well(worker)) for worker in range(6)]
        refused = []
        try:
            await asyncio.sleep(0.2)
            async with Client(server.port, server.grpc_port, name, timeout=60) as client:
                start = time.monotonic()
                for protocol in PROTOCOLS:
                    answer, _ = await client.ask(protocol, bad)
                    refused.append((answer.code or answer.status, answer.details or answer.body.decode()))
                elapsed = time.monotonic() - start
        finally:
            over = True
            await asyncio.gather(*workers)
        assert {status for status, _ in refused} <= {400, "INVALID_ARGUMENT"}, refused
        assert len(refused) == len(PROTOCOLS)
        assert all("input 'ids': values must be 0 to 9, got 1000000" in reason for _, reason in refused), refused
        # A kernel that raises takes 3 s: the values never reached the graph.
        assert elapsed < 2

    asyncio.run(run())
    assert not wrong, (len(wrong), wrong[:5])
    assert server.is_alive()


def test_value_on_which_graph_raises_fails_only_its_own_request(server: ModelServer, hard_models: Path) -> None:
    verified = ModelBundle.open(hard_models / "shifted").read_verified()
    good, expected = {"ids": np.asarray(verified.inputs["ids"])[:2]}, verified.outputs["output"][:2]
    bad = {"ids": np.array([[1, 2, 1_000_000]], np.int32)}

    async def run() -> None:
        async with Client(server.port, server.grpc_port, "shifted", timeout=60) as client:
            # All in one batch: it fails after 3 s, then the half of it with the bad request.
            requests = [client.ask("v1", inputs) for inputs in (good, bad, good)]
            (_, first), (refused, _), (_, last) = await asyncio.gather(*requests)
            for found in (first, last):
                assert found is not None
                np.testing.assert_allclose(found["output"], expected, atol=1e-5)
            assert refused.status == 400, refused
            assert "the graph cannot compute" in refused.json()["error"]
            _, found = await client.ask("grpc", good)
            assert found is not None

    asyncio.run(run())


def test_lengths_that_only_signature_allows(server: ModelServer, hard_models: Path) -> None:
    verified = ModelBundle.open(hard_models / "loose").read_verified()
    good, expected = {"values": np.asarray(verified.inputs["values"])[:1]}, verified.outputs["output"][:1]

    async def run() -> None:
        async with Client(server.port, server.grpc_port, "loose") as client:
            for length in (1, 3, 5, 4, 100, 7):
                values = {"values": np.ones((2, length), np.float32)}
                answer, found = await client.ask("v1", values)
                assert (answer.status == 200) == (length == 4), answer
                if found is None:
                    assert answer.status == 400, answer
                    assert "the graph cannot compute" in answer.json()["error"], answer
                answer, _ = await client.ask("grpc", values)
                assert answer.code == ("OK" if length == 4 else "INVALID_ARGUMENT"), answer
                _, found = await client.ask("binary", good)
                assert found is not None
                np.testing.assert_allclose(found["output"], expected, atol=1e-5)

    asyncio.run(run())


def test_lengths_that_are_padded_to_sizes(server: ModelServer) -> None:
    async def run() -> None:
        async with Client(server.port, server.grpc_port, "tokens", ["output_0", "output_1"]) as client:
            for length in range(1, 40):
                values = np.arange(length, dtype=np.float32).reshape(1, length)
                answer, found = await client.ask("binary", {"values": values})
                assert (answer.status == 200) == (length <= 16), answer
                if found is not None:
                    np.testing.assert_allclose(found["output_1"], values * 2)
                    np.testing.assert_allclose(found["output_0"], values.sum(axis=1))

    asyncio.run(run())


@pytest.mark.skipif(not LONG, reason="compiles 400 graphs: make fuzz")
def test_no_more_shapes_are_compiled_than_there_is_room_for(
    hard_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each new length costs a compilation and stays in memory, which a client could fill."""
    with ModelServer(tmp_path_factory.mktemp("shapes"), {"endless": hard_models / "endless"}) as server:
        memory = server.wait_ready().read_memory()

        async def run() -> None:
            async with Client(server.port, server.grpc_port, "endless", ["output_0", "output_1"]) as client:
                for length in range(1, 90):
                    for rows in (1, 2, 4, 8, 16, 32, 64):
                        values = np.ones((rows, length), np.float32)
                        answer, found = await client.ask("binary", {"values": values})
                        assert (answer.status == 200) == (length <= 64), answer
                        if found is not None:
                            np.testing.assert_allclose(found["output_1"], values * 2)
                        else:
                            assert "64 shapes are compiled already" in answer.json()["error"]

        asyncio.run(run())
        grown = server.read_memory() - memory
        print(f"448 shapes: memory + {grown >> 20} MiB")
        assert grown < 256 << 20
