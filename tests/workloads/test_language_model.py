"""The language model trained from scratch: better than counts of pairs, and served by the OpenAI protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from openai import OpenAI
from tokenizers import Tokenizer

from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.lm.text.examples import ExampleEncoder, hold_out, open_examples, read_examples
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(600)]

LENGTH, HELD_OUT, SERVICE = 64, 0.1, "texts"


def compute_bigram_perplexity(
    training: list[NDArray[np.int32]], held_out: list[NDArray[np.int32]], vocabulary: int
) -> float:
    """Return the perplexity of the next token's frequency after the current one.

    It is smoothed by the next token's own frequency, by the weight that is best on the held-out texts.
    """
    counts = np.zeros((vocabulary, vocabulary))
    for ids in training:
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    frequencies, totals = (counts.sum(0) + 1) / (counts.sum() + vocabulary), counts.sum(1)
    current, following = (np.concatenate([ids[part] for ids in held_out]) for part in (np.s_[:-1], np.s_[1:]))

    def compute(weight: float) -> float:
        found = counts[current, following] + weight * frequencies[following]
        return float(np.exp(-np.log(found / (totals[current] + weight)).mean()))

    return min(map(compute, (1, 3, 10, 30, 100, 300)))


def test_pipeline_beats_bigram_model_and_completes_texts(local_home: Path) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        result = run_local("language_model", {"service_name": SERVICE}, home=local_home, keep=True)
        assert result.state == "succeeded"
        artifacts = {name: artifact["uri"] for _, name, artifact in result.list_artifacts()}
        bundle = Path(artifacts["tuned"])
        with open_examples("new_testament") as file:
            training, held = hold_out(read_examples(file), HELD_OUT)
        assert held == read_examples(Path(artifacts["held_out_examples"], "held_out.jsonl"))
        encoder = ExampleEncoder(bundle, chat=False)
        parts = [[ids[: LENGTH + 1] for ids, _ in encoder.encode_all(records, "texts")] for records in (training, held)]
        baseline = compute_bigram_perplexity(*parts, encoder.tokenizer.get_vocab_size())
        evaluated = result.steps["evaluate-language-model"].outputs
        assert evaluated["value"] < 0.8 * baseline
        # The gate refuses a model that is no better than counts.
        assert 1 - baseline / evaluated["base_value"] < 0.96

        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        assert len(tokenizer.encode("And he said unto them").ids) < 8
        openai = OpenAI(base_url=f"{client.get(SERVICE).url}/openai/v1", api_key="-")
        completion = openai.completions.create(
            model=SERVICE, prompt="And he said unto", max_tokens=1, temperature=0, logprobs=1
        )
        assert completion.choices[0].text in (" them", " him", " me", " the")
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 1
    finally:
        client.delete(SERVICE)
