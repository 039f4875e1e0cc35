"""A server with an encoder-decoder, and the real `openai` client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI

from kfp_mindspore.cli.main import run
from tests.support.language.tiny_t5 import T5, write_t5
from tests.support.serving.model_servers import ModelServer

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

SOURCES = ["w5 w9", "w30", " ".join(f"w{number}" for number in range(3, 23))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenAI, list[str]]]:
    from kfp_mindspore.lm.seq2seq_bundle import open_rewriter

    directory = tmp_path_factory.mktemp("seq2seq")
    write_t5(directory / "source")
    assert run(["lm", "import", str(directory / "source"), "-o", str(directory / "bundle")]) == 0
    # One by one: tokens of nearly equal probability do not change places with the batch.
    rewriter = open_rewriter(directory / "bundle")
    expected = [rewriter.rewrite([source], max_tokens=8)[0] for source in SOURCES]
    with ModelServer(directory, {"rewriter": directory / "bundle"}) as server:
        server.wait_ready()
        url = f"http://127.0.0.1:{server.port}/openai/v1"
        yield OpenAI(base_url=url, api_key="-", max_retries=0), expected


def test_concurrent_answers_equal_those_in_process(served: tuple[OpenAI, list[str]]) -> None:
    client, expected = served

    def complete(number: int) -> openai.types.Completion:
        return client.completions.create(model="rewriter", prompt=SOURCES[number % 3], max_tokens=8)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(complete, range(6)))
    for number, completion in enumerate(found):
        assert completion.choices[0].text == expected[number % 3]
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == len(SOURCES[number % 3].split()) + 1


def test_stream_and_stop_give_beginnings(served: tuple[OpenAI, list[str]]) -> None:
    client, expected = served
    stream = client.completions.create(model="rewriter", prompt=SOURCES[2], max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected[2]
    word = expected[2].split()[1]
    stopped = client.completions.create(model="rewriter", prompt=SOURCES[2], max_tokens=8, stop=word)
    assert stopped.choices[0].finish_reason == "stop"
    assert word not in stopped.choices[0].text


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"), ({"max_tokens": T5.max_length}, "max_tokens")],
)
def test_fields_that_do_not_apply_are_refused(
    served: tuple[OpenAI, list[str]], fields: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        served[0].completions.create(**{"model": "rewriter", "prompt": "w5", **fields})  # type: ignore[call-overload]
    assert refused.value.param == param


def test_chat_is_refused(served: tuple[OpenAI, list[str]]) -> None:
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        served[0].chat.completions.create(model="rewriter", messages=[{"role": "user", "content": "w5"}])
