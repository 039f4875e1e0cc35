"""One language model over two servers: answers equal to one server's, and a lost second server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from kfp_mindspore.lm.bundle.causal import import_model
from kfp_mindspore.lm.bundle.stages import split_model
from tests.support.language.language_servers import LanguageServer
from tests.support.language.tiny_language_model import write_source
from tests.support.ports import reserve_port

pytestmark = pytest.mark.mindspore

SLOTS = "--max-num-seqs=4"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, `whole`, and its stages."""
    directory = tmp_path_factory.mktemp("bundles")
    import_model(write_source(directory / "source"), directory / "whole")
    split_model(directory / "whole", 1, directory)
    return directory


class Second(LanguageServer):
    """A second stage's server.

    Args:
        directory: For its log.
        bundles: With the bundle `second`.
        port: Its gRPC port.
        flags: Flags of the server.
    """

    def __init__(self, directory: Path, bundles: Path, port: int, *flags: str) -> None:
        directory.mkdir()
        flags = ("--enable_grpc=true", f"--grpc_port={port}", *(flags or (SLOTS,)))
        super().__init__(directory, *flags, bundle=bundles / "second")


@pytest.fixture(scope="module")
def port() -> int:
    return reserve_port()


@pytest.fixture(scope="module")
def second(bundles: Path, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    with Second(tmp_path_factory.mktemp("second") / "server", bundles, port) as server:
        yield server


@pytest.fixture(scope="module")
def first(bundles: Path, port: int, second: Second, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("first")
    with LanguageServer(directory, SLOTS, f"--next-stage=127.0.0.1:{port}", bundle=bundles / "first") as server:
        yield server.url
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def whole(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LanguageServer(tmp_path_factory.mktemp("whole"), SLOTS, bundle=bundles / "whole") as server:
        yield server.url


REQUESTS: list[dict[str, Any]] = [
    {"prompt": "the quick brown fox " * 5, "temperature": 0},
    {"prompt": "dog", "temperature": 0.8, "seed": 5},
    {"prompt": "the lazy", "temperature": 0.9, "seed": 7, "echo": True},
    {"prompt": "jumps over", "temperature": 0.9, "seed": 8, "n": 2},
]


@pytest.mark.parametrize("fields", REQUESTS)
def test_texts_and_log_probabilities_equal_those_of_one_server(first: str, whole: str, fields: dict[str, Any]) -> None:
    answers = []
    for url in (first, whole):
        client = OpenAI(base_url=f"{url}/openai/v1", api_key="-", max_retries=0)
        response = client.completions.create(
            model="chat", max_tokens=24, logprobs=20, extra_body={"ignore_eos": True}, **fields
        )
        answers.append([choice.to_dict() for choice in response.choices])
    # Floats too: the logits are equal bit by bit.
    assert answers[0] == answers[1]


def test_streams_that_join_and_leave_equal_those_of_one_server(first: str, whole: str) -> None:
    async def collect(client: AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(
            model="chat", prompt="fox " * (1 + number % 5), max_tokens=8 + 7 * (number % 4), stream=True,
            temperature=0.5, seed=number, extra_body={"ignore_eos": True},
        )  # fmt: skip
        return "".join([piece.choices[0].text async for piece in stream])

    async def collect_all(url: str) -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            return await asyncio.gather(*(collect(client, number) for number in range(12)))

    assert asyncio.run(collect_all(first)) == asyncio.run(collect_all(whole))


def test_killed_second_server_ends_streams_and_its_successor_serves(tmp_path: Path, bundles: Path) -> None:
    port = reserve_port()
    flag = f"--next-stage=127.0.0.1:{port}"
    fields: dict[str, Any] = {"model": "chat", "prompt": "dog", "temperature": 0, "extra_body": {"ignore_eos": True}}
    with (
        Second(tmp_path / "second", bundles, port) as second,
        LanguageServer(tmp_path, SLOTS, flag, bundle=bundles / "first") as server,
    ):
        client = OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=30)
        expected = client.completions.create(max_tokens=8, **fields).choices[0].text
        stream = client.completions.create(max_tokens=120, stream=True, **fields)
        next(iter(stream))
        second.process.kill()
        second.process.wait(20)
        with pytest.raises(openai.APIError, match="second stage does not answer"):
            for _ in stream:
                pass
        response = httpx.post(f"{server.url}/v1/completions", json={"model": "chat", "prompt": "a"}, timeout=30)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert httpx.get(f"{server.url}/health").status_code == 200
        with Second(tmp_path / "successor", bundles, port):
            patient = client.with_options(max_retries=5)
            assert patient.completions.create(max_tokens=8, **fields).choices[0].text == expected
        assert "Traceback" not in server.log.read_text()


def test_server_with_other_limits_does_not_start(tmp_path: Path, bundles: Path, port: int, second: Second) -> None:
    flags = ("--max-num-seqs=8", f"--next-stage=127.0.0.1:{port}")
    with pytest.raises(AssertionError, match=r"--next-stage: .*the first server has --max-num-seqs 8, this one 4"):
        LanguageServer(tmp_path, *flags, bundle=bundles / "first")
