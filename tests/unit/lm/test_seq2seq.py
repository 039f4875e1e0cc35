"""T5's network equals a float64 forward pass, its cached answers the full pass, and a training learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mindspore import nn
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.rewriter import Rewriter, Seq2SeqRunner, build_pairs
from kfp_mindspore.lm.seq2seq import (
    Seq2SeqConfig,
    TrainedSeq2Seq,
    compute_buckets,
    initialise_weights,
    list_seq2seq_weights,
)
from kfp_mindspore.training import TrainingConfig, fit

pytestmark = pytest.mark.mindspore

T5 = Seq2SeqConfig(40, 16, 2, 2, 2, 6, 24, 64, buckets=8, max_distance=10)
V1_1 = Seq2SeqConfig(
    40, 16, 2, 1, 2, 6, 24, 64, 8, 10, activation="gelu_tanh", gated=True, tied=False, scaled=False
)  # fmt: skip
SOURCES = [np.arange(3, 21, dtype=np.int32), np.array([5, 9, 1], np.int32), np.array([30, 31], np.int32)]

WORDS = ("one", "two", "three", "1", "2", "3")


def make_weights(config: Seq2SeqConfig) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = list_seq2seq_weights(config).items()
    return {name: random.normal(len(shape) == 1, 0.3, shape).astype(np.float32) for name, shape in shapes}


def compute_bucket(config: Seq2SeqConfig, distance: int, both: bool) -> int:
    count = config.buckets // 2 if both else config.buckets
    start = count if both and distance > 0 else 0
    size, exact = (abs(distance) if both else max(-distance, 0)), count // 2
    if size < exact:
        return start + size
    ratio = math.log(size / exact) / math.log(config.max_distance / exact)
    return start + min(exact + int(ratio * (count - exact)), count - 1)


def compute_logits(config: Seq2SeqConfig, weights: dict[str, np.ndarray], source: Any, steps: Any) -> np.ndarray:
    """Return the logits of one source without padding, in float64."""
    wide = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(hidden: np.ndarray, name: str) -> np.ndarray:
        return hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + config.epsilon) * wide[name]

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, bias: Any) -> np.ndarray:
        query, key, value = (
            part.reshape(len(part), config.heads, -1).transpose(1, 0, 2) for part in (query, key, value)
        )
        scores = np.exp(query @ key.transpose(0, 2, 1) + bias)
        mixed = scores / scores.sum(-1, keepdims=True) @ value
        return mixed.transpose(1, 0, 2).reshape(mixed.shape[1], -1)

    def run(stack: str, ids: Any, encoded: np.ndarray | None) -> np.ndarray:
        count = len(ids)
        both = encoded is None
        pairs = [[compute_bucket(config, key - query, both) for key in range(count)] for query in range(count)]
        bias = wide[f"{stack}.bias"][np.array(pairs)].transpose(2, 0, 1)
        if not both:
            bias = bias + np.triu(np.full((count, count), -np.inf), 1)
        hidden = wide["embedding"][ids]
        for index in range(config.layers if both else config.decoder_layers):
            layer = f"{stack}.layers.{index}"
            parts = np.split(norm(hidden, f"{layer}.norm1") @ wide[f"{layer}.qkv"].T, 3, -1)
            hidden = hidden + attend(*parts, bias) @ wide[f"{layer}.out"].T
            if encoded is not None:
                query = norm(hidden, f"{layer}.norm2") @ wide[f"{layer}.query"].T
                key, value = np.split(encoded @ wide[f"{layer}.key_value"].T, 2, -1)
                hidden = hidden + attend(query, key, value, 0) @ wide[f"{layer}.cross_out"].T
            inner = norm(hidden, f"{layer}.norm{2 if both else 3}") @ wide[f"{layer}.up"].T
            if config.gated:
                gate, inner = np.split(inner, 2, -1)
                inner = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * inner
            else:
                inner = np.maximum(inner, 0)
            hidden = hidden + inner @ wide[f"{layer}.down"].T
        return norm(hidden, f"{stack}.norm")

    hidden = run("decoder", steps, run("encoder", source, None))
    return hidden * (config.width**-0.5 if config.scaled else 1) @ wide["embedding" if config.tied else "head"].T


@pytest.mark.slow
@pytest.mark.parametrize("config", [T5, V1_1], ids=["t5", "t5-v1.1"])
def test_cached_and_full_logits_equal_float64(config: Seq2SeqConfig) -> None:
    weights = make_weights(config)
    runner = Seq2SeqRunner(config, weights, start_id=0, eos_ids=())
    ids, logits = runner.generate_steps(SOURCES, max_tokens=14)
    assert ids.shape == (3, 14)
    for source, answer, found in zip(SOURCES, ids, logits, strict=True):
        expected = compute_logits(config, weights, source, [0, *answer[:-1]])
        largest = np.abs(expected).max()
        assert np.abs(found - expected).max() <= 1e-5 * largest
        assert np.abs(runner.score(source, answer) - expected).max() <= 1e-5 * largest


@pytest.mark.slow
def test_answers_end_before_end_token_and_keep_order() -> None:
    weights = make_weights(T5)
    ids, _ = Seq2SeqRunner(T5, weights, start_id=0, eos_ids=()).generate_steps(SOURCES, max_tokens=6)
    end = int(ids[0, 3])
    answers = Seq2SeqRunner(T5, weights, start_id=0, eos_ids=(end,)).generate(SOURCES, max_tokens=6)
    for row, answer in zip(ids.tolist(), answers, strict=True):
        assert answer.tolist() == (row[: row.index(end)] if end in row else row)


def test_far_positions_share_a_bucket() -> None:
    config = Seq2SeqConfig(40, 16, 1, 1, 2, 8, 24)
    distances = np.array([-200, -128, -7, 0, 7, 8, 128, 200])
    assert compute_buckets(config, distances, bidirectional=True).tolist() == [15, 15, 7, 0, 23, 24, 31, 31]
    assert compute_buckets(config, distances, bidirectional=False).tolist() == [31, 31, 7, 0, 0, 0, 0, 0]


@pytest.mark.slow
def test_loss_ignores_padding_and_training_lowers_it() -> None:
    random = np.random.default_rng(4)
    source = random.integers(2, 40, (8, 4)).astype(np.int32)
    targets = source[:, ::-1].copy()
    ids = np.concatenate([np.zeros((8, 1), np.int32), targets[:, :-1]], 1)
    arrays = {"source": source, "ids": ids, "next_ids": targets, "counts": np.ones((8, 4), np.float32)}
    arrays["counts"][:, 3] = 0
    network = TrainedSeq2Seq(
        T5, initialise_weights(T5, 1), source_length=4, target_length=4, tokens_per_sample=3.0
    )  # fmt: skip
    before = network.get_weights()
    expected = []
    for row in range(8):
        logits = compute_logits(T5, before, source[row], ids[row])[:3]
        chosen = logits[np.arange(3), targets[row, :3]]
        expected.append(np.log(np.exp(logits).sum(-1)) - chosen)
    config = TrainingConfig(epochs=40, batch_size=8, export_check="off", verbose=False)
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    history = fit(network, arrays, optimizer=optimizer, config=config).history
    assert history[0]["loss"] == pytest.approx(float(np.mean(expected)), rel=1e-4)
    assert history[-1]["loss"] < 0.2 * history[0]["loss"]


@pytest.mark.slow
def test_rewriter_learns_pairs_of_texts() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, **{word: 2 + n for n, word in enumerate(WORDS)}}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    pairs = [("one two", "2 1"), ("three", "3"), ("two three one", "3"), ("one", "1 1 1")]
    arrays = build_pairs(pairs, tokenizer, start_id=0, pad_id=0)
    assert arrays["source"][1].tolist() == [4, 1, 0, 0]
    assert arrays["ids"][0].tolist() == [0, 6, 5, 0]
    assert arrays["next_ids"][0].tolist() == [6, 5, 1, 0]
    assert arrays["counts"].sum(1).tolist() == [3, 2, 2, 4]
    network = TrainedSeq2Seq(T5, initialise_weights(T5), source_length=4, target_length=4, tokens_per_sample=2.75)
    config = TrainingConfig(epochs=60, batch_size=4, export_check="off", verbose=False)
    fit(network, arrays, optimizer=nn.Adam(network.trainable_params(), 0.01), config=config)
    runner = Seq2SeqRunner(T5, network.get_weights(), start_id=0, eos_ids=(1,))
    answers = Rewriter(runner, tokenizer).rewrite([source for source, _ in pairs], max_tokens=8)
    assert answers == [target for _, target in pairs]


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="buckets: must be a multiple of 4, got 6"):
        Seq2SeqConfig(40, 16, 1, 1, 2, 8, 24, buckets=6)
    runner = Seq2SeqRunner(T5, make_weights(T5), start_id=0, eos_ids=(1,))
    with pytest.raises(ValidationError, match=r"sources\[0\]: must have 1 to 64 tokens, got 0"):
        runner.generate([np.zeros(0, np.int32)])
