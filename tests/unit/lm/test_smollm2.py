"""SmolLM2-135M-Instruct, fetched by pip, answers in words, by the network alone and by the OpenAI client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from kfp_mindspore.lm.bundle.causal import import_model
from tests.support.language.demo_models import get_demo_weights
from tests.support.language.language_servers import LanguageServer

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def bundle(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2") / "bundle"
    assert import_model(get_demo_weights(pytestconfig, "smollm2"), path) <= 1e-5
    return path


@pytest.fixture(scope="module")
def client(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    flags = ("--max-num-seqs=2", "--max-model-len=256")
    with LanguageServer(tmp_path_factory.mktemp("server"), *flags, bundle=bundle) as server:
        yield OpenAI(base_url=f"{server.url}/openai/v1", api_key="-", max_retries=0)


def test_network_names_capital(bundle: Path) -> None:
    greedy = np.load(bundle / "prompts.npz")["greedy.0"]
    assert "Paris" in Tokenizer.from_file(str(bundle / "tokenizer.json")).decode(greedy.tolist())


def test_served_chat_names_capital(client: OpenAI) -> None:
    response = client.chat.completions.create(model="chat", messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in response.choices[0].message.content


def test_equal_seeds_give_equal_texts_with_and_without_stream(client: OpenAI) -> None:
    def ask(seed: int) -> dict[str, Any]:
        return {"model": "chat", "messages": QUESTION, "temperature": 1.5, "seed": seed, "max_tokens": 24}

    texts = [client.chat.completions.create(**ask(seed)).choices[0].message.content for seed in (3, 3, 4)]
    stream = client.chat.completions.create(**ask(3), stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in stream) == texts[0] == texts[1] != texts[2]
