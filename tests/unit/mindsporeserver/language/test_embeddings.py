"""A server with an embedding model, and the real `openai` client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from kfp_mindspore.cli.main import run
from tests.support.language.tiny_bert import LONGEST, WIDTH, compute_float64, write_bert
from tests.support.serving.model_servers import ModelServer

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

IDS = [2, 20, 21, 3]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenAI, dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("embedding")
    tensors = write_bert(directory / "source")
    assert run(["lm", "import", str(directory / "source"), "-o", str(directory / "bundle")]) == 0
    with ModelServer(directory, {"search": directory / "bundle"}) as server:
        server.wait_ready()
        url = f"http://127.0.0.1:{server.port}/openai/v1"
        yield OpenAI(base_url=url, api_key="-", max_retries=0), tensors


def test_embeddings_equal_float64(served: tuple[OpenAI, dict[str, Any]]) -> None:
    client, tensors = served
    expected = compute_float64(tensors, IDS)
    for encoding in ("float", "base64"):
        response = client.embeddings.create(model="search", input=[IDS, IDS[:2]], encoding_format=encoding)
        assert response.usage.prompt_tokens == response.usage.total_tokens == 6
    # Without encoding_format the client requests base64 and decodes it.
    response = client.embeddings.create(model="search", input=IDS, dimensions=WIDTH)
    np.testing.assert_allclose(response.data[0].embedding, expected, atol=2e-6)
    (model,) = client.models.list().data
    assert model.id == "search"


def test_concurrent_texts_get_their_own_rows(served: tuple[OpenAI, dict[str, Any]]) -> None:
    client, tensors = served

    def embed(number: int) -> Any:
        return client.embeddings.create(model="search", input=[[2, number, 3]]).data[0].embedding

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(embed, range(4, 28)))
    np.testing.assert_allclose(found, [compute_float64(tensors, [2, number, 3]) for number in range(4, 28)], atol=2e-6)
    text = client.embeddings.create(model="search", input="quick brown fox").data[0].embedding
    assert np.linalg.norm(text) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["fox", " "]}, "input[1]"),
        ({"input": [[999]]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "fox", "dimensions": 8}, "dimensions"),
        ({"input": "fox", "encoding_format": "hex"}, "encoding_format"),
        ({"input": [2] * (LONGEST + 1)}, "input"),
    ],
)
def test_bad_fields_are_named(served: tuple[OpenAI, dict[str, Any]], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        served[0].embeddings.create(model="search", **fields)
    assert caught.value.param == param
    assert (caught.value.code == "context_length_exceeded") == (fields["input"] == [2] * (LONGEST + 1))


def cosine(first: Any, second: Any) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.mark.parametrize("route", ["v1/rerank", "v2/rerank", "rerank", "openai/v1/rerank"])
def test_documents_are_ordered_by_similarity(served: tuple[OpenAI, dict[str, Any]], route: str) -> None:
    client, texts = served[0], ["quick brown fox", "lazy dog", "the fox jumps"]
    rows = [np.array(item.embedding) for item in client.embeddings.create(model="search", input=["a fox", *texts]).data]
    expected = [cosine(rows[0], row) for row in rows[1:]]
    url = str(client.base_url).removesuffix("openai/v1/") + route
    body = {"model": "search", "query": "a fox", "documents": texts}
    found = httpx.post(url, json=body).raise_for_status().json()
    order = [item["index"] for item in found["results"]]
    assert order == sorted(range(3), key=lambda index: -expected[index])
    assert [item["document"]["text"] for item in found["results"]] == [texts[index] for index in order]
    scores = [item["relevance_score"] for item in found["results"]]
    assert scores == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert found["usage"]["total_tokens"] > 0
    best = httpx.post(url, json={**body, "top_n": 1}).json()["results"]
    assert [item["index"] for item in best] == order[:1]


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [("a", "b", [(0, 1)]), ("a", ["b", "c"], [(0, 1), (0, 2)]), (["a", "b"], ["c", "d"], [(0, 2), (1, 3)])],
)
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_scores_are_cosines(
    served: tuple[OpenAI, dict[str, Any]], first: Any, second: Any, pairs: Any, names: tuple[str, str]
) -> None:
    client = served[0]
    texts = [*first, *second]
    rows = [np.array(item.embedding) for item in client.embeddings.create(model="search", input=texts).data]
    url = str(client.base_url).removesuffix("openai/v1/") + "score"
    found = httpx.post(url, json={"model": "search", names[0]: first, names[1]: second}).raise_for_status().json()
    assert [item["index"] for item in found["data"]] == list(range(len(pairs)))
    expected = [cosine(rows[one], rows[other]) for one, other in pairs]
    assert [item["score"] for item in found["data"]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("rerank", {"documents": ["a"]}, "query"),
        ("rerank", {"query": "a"}, "documents"),
        ("rerank", {"query": "a", "documents": ["a", 5]}, "documents[1]"),
        ("rerank", {"query": "a", "documents": []}, "documents"),
        ("rerank", {"query": "a", "documents": [""]}, "documents"),
        ("rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("rerank", {"query": "fox " * LONGEST, "documents": ["a"]}, "query"),
        ("score", {"text_1": "a"}, "text_2"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    ],
)
def test_bad_pairs_are_named(
    served: tuple[OpenAI, dict[str, Any]], route: str, fields: dict[str, Any], param: str
) -> None:
    url = str(served[0].base_url) + route
    response = httpx.post(url, json={"model": "search", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_chat_is_refused(served: tuple[OpenAI, dict[str, Any]]) -> None:
    with pytest.raises(openai.BadRequestError, match="is an embedding model"):
        served[0].chat.completions.create(model="search", messages=[{"role": "user", "content": "fox"}])
