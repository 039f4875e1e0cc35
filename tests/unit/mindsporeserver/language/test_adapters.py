"""Adapters of a served model: chosen by name, loaded and unloaded while others answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.support.language.language_servers import LanguageServer

pytestmark = pytest.mark.mindspore

LONG = 1200
RUNNING = "vllm:num_requests_running"
PROMPT = "the quick brown fox jumps over the lazy dog " * 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    """A server with the adapters `first` and `second` of three at most, and further names of model and adapter."""
    directory = tmp_path_factory.mktemp("adapters")
    for seed in range(4):
        (directory / str(seed)).mkdir()
        (directory / str(seed) / "adapter_config.json").write_text(str(seed))
    names = {"first": 0, "second": 1, "org/first": 0}
    modules = ("--lora-modules", *(f"{name}={directory / str(seed)}" for name, seed in names.items()), "--max-loras=3")
    modules = ("--served-model-name", "chat", "org/chat", *modules)
    flags = ("--max-num-seqs=4", "--max-model-len=6000", "--allow-runtime-lora-updating=true")
    with LanguageServer(directory, *modules, *flags) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def client(server: LanguageServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)


def complete(client: OpenAI, model: str, max_tokens: int = 20, **fields: Any) -> Any:
    body = {"ignore_eos": True, **fields}
    return client.completions.create(model=model, prompt=PROMPT, max_tokens=max_tokens, seed=1, extra_body=body)


def post(server: LanguageServer, route: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{route}_lora_adapter", json=body)


def locate(server: LanguageServer, number: int) -> str:
    return str(server.log.parent / str(number))


def test_adapters_are_listed_with_their_base(server: LanguageServer, client: OpenAI) -> None:
    found = [(model.id, model.root, model.parent) for model in client.models.list().data]  # type: ignore[attr-defined]
    assert found == [
        ("chat", "chat", None),
        ("first", locate(server, 0), "chat"),
        ("second", locate(server, 1), "chat"),
        ("org/first", locate(server, 0), "chat"),
        ("org/chat", "chat", None),
    ]
    assert client.models.retrieve("second").parent == "chat"  # type: ignore[attr-defined]
    assert httpx.get(f"{server.url}/openai/v1/models/first").json()["root"] == locate(server, 0)
    tokens = {
        httpx.post(f"{server.url}/tokenize", json={"model": name, "prompt": PROMPT}).text for name in ("chat", "first")
    }
    assert len(tokens) == 1


def test_prefix_cache_and_batch_mix_no_adapters(server: LanguageServer, client: OpenAI) -> None:
    names = ("chat", "first", "second")
    alone = [complete(client, name) for name in names]
    assert [answer.model for answer in alone] == list(names)
    assert len({answer.choices[0].text for answer in alone}) == 3
    assert [answer.usage.prompt_tokens_details.cached_tokens for answer in alone] == [0, 0, 0]
    streams = [
        client.completions.create(
            model=name, prompt=PROMPT, max_tokens=20, seed=1, stream=True, extra_body={"ignore_eos": True}
        )
        for name in names
    ]
    for stream, answer in zip(streams, alone, strict=True):
        assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text
    again = complete(client, "first")
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert again.choices[0].text == alone[1].choices[0].text


def test_unload_under_streams_loses_nothing(server: LanguageServer, client: OpenAI) -> None:
    assert post(server, "load", lora_name="third", lora_path=locate(server, 2)).json()["parent"] == "chat"
    expected = {name: complete(client, name, LONG).choices[0].text for name in ("third", "first")}
    streams = {
        name: client.completions.create(
            model=name, prompt=PROMPT, max_tokens=LONG, seed=1, stream=True, extra_body={"ignore_eos": True}
        )
        for name in expected
    }
    texts = {name: next(iter(stream)).choices[0].text for name, stream in streams.items()}
    assert post(server, "unload", lora_name="third").json() == {"id": "third", "object": "model", "deleted": True}
    with pytest.raises(openai.NotFoundError) as error:
        complete(client, "third")
    assert error.value.code == "model_not_found"
    for name, stream in streams.items():
        for chunk in stream:
            texts[name] += chunk.choices[0].text
    assert texts == expected
    server.wait_metric(RUNNING, 0)
    # Another adapter under the name in the same place finds no rows of the one before.
    assert post(server, "load", lora_name="third", lora_path=locate(server, 3)).status_code == 200
    other = complete(client, "third")
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    assert not expected["third"].startswith(other.choices[0].text)
    assert post(server, "unload", lora_name="third").status_code == 200


def test_reloaded_model_keeps_adapters(server: LanguageServer, client: OpenAI) -> None:
    assert post(server, "load", lora_name="third", lora_path=locate(server, 2)).status_code == 200
    expected = complete(client, "third").choices[0].text
    for action in ("unload", "load"):
        assert httpx.post(f"{server.url}/v2/repository/models/chat/{action}", timeout=60).status_code == 200
    assert complete(client, "third").choices[0].text == expected
    assert post(server, "unload", lora_name="third").status_code == 200


@pytest.mark.parametrize(
    ("route", "body", "status", "param", "message"),
    [
        ("load", {"lora_path": "x"}, 400, "lora_name", "lora_name"),
        ("load", {"lora_name": "new"}, 400, "lora_path", "lora_path"),
        ("load", {"lora_name": "new", "lora_path": "none"}, 400, "lora_path", "not found"),
        ("load", {"lora_name": "first", "lora_path": "x"}, 400, "lora_name", "is loaded already"),
        ("load", {"lora_name": "chat", "lora_path": "x"}, 400, "lora_name", "'chat' is a model's name"),
        ("load", {"lora_name": "a,b", "lora_path": "x"}, 400, "lora_name", "must match"),
        ("unload", {"lora_name": "new"}, 404, "lora_name", "adapter 'new' does not exist"),
    ],
)
def test_wrong_change_is_refused(
    server: LanguageServer, route: str, body: dict[str, Any], status: int, param: str, message: str
) -> None:
    response = post(server, route, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert message in error["message"]


@pytest.mark.slow
def test_adapter_that_is_none_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"--lora-modules: new: .* must be a peft directory, it has no adapter_config.json"
    ):
        LanguageServer(tmp_path, "--lora-modules", f"new={tmp_path / 'none'}")
