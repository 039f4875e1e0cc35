"""T5's network equals a float64 forward pass, its cached answers the full pass, and a training learns."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import nn
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig, TrainedSeq2Seq, compute_buckets, initialise_weights
from kfp_mindspore.lm.seq2seq_bundle import Rewriter, build_runner
from kfp_mindspore.lm.serving.greedy import compute_steps, generate
from kfp_mindspore.lm.sources.t5 import SourceSeq2Seq
from kfp_mindspore.lm.tuning.pairs import build_pairs
from kfp_mindspore.training import TrainingConfig, fit
from tests.support.language.tiny_t5 import T5, V1_1, compute_logits, make_weights

pytestmark = pytest.mark.mindspore

SOURCES = [np.arange(3, 21, dtype=np.int32), np.array([5, 9, 1], np.int32), np.array([30, 31], np.int32)]

GENERATION = {"decoder_start_token_id": 0, "eos_token_id": 1}
WORDS = ("one", "two", "three", "1", "2", "3")


@pytest.mark.slow
@pytest.mark.parametrize("config", [T5, V1_1], ids=["t5", "t5-v1.1"])
def test_cached_and_full_logits_equal_float64(config: Seq2SeqConfig) -> None:
    weights = make_weights(config)
    runner = build_runner(SourceSeq2Seq(config, weights, "", GENERATION, "t5"), 1)
    for source in SOURCES:
        # The cache grows with the answer.
        answer, found = compute_steps(runner, source, 18)
        expected = compute_logits(config, weights, source, [0, *answer[:-1]])
        largest = np.abs(expected).max()
        assert np.abs(found - expected).max() <= 1e-5 * largest
        assert np.abs(runner.score(source, answer) - expected).max() <= 1e-5 * largest


@pytest.mark.slow
def test_answers_end_before_end_token_and_keep_order() -> None:
    runner = build_runner(SourceSeq2Seq(T5, make_weights(T5), "", GENERATION, "t5"), 2)
    expected = [compute_steps(runner, source, 6)[0].tolist() for source in SOURCES]
    end = expected[0][3]
    answers = generate(runner, SOURCES, max_tokens=6, eos_ids=(end,))
    for row, answer in zip(expected, answers, strict=True):
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
    model = SourceSeq2Seq(T5, network.get_weights(), tokenizer.to_str(), GENERATION, "t5")
    rewriter = Rewriter(model, tokenizer)
    assert rewriter.rewrite([source for source, _ in pairs], max_tokens=8) == [target for _, target in pairs]
    with pytest.raises(ValidationError, match=r"sources\[1\]: must have 1 to 64 tokens, got 71"):
        rewriter.rewrite(["one", "two " * 70])
    with pytest.raises(ValidationError, match="max_tokens: must be from 1 to 64, got 65"):
        rewriter.rewrite(["one"], max_tokens=65)


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="buckets: must be a multiple of 4, got 6"):
        Seq2SeqConfig(40, 16, 1, 1, 2, 8, 24, buckets=6)
    runner = build_runner(SourceSeq2Seq(T5, make_weights(T5), "", GENERATION, "t5"), 1)
    with pytest.raises(ValidationError, match=r"sources\[0\]: must have 1 to 64 tokens, got 0"):
        runner.score(np.zeros(0, np.int32), SOURCES[1])
    with pytest.raises(ValidationError, match="max_tokens: must be from 1 to 64, got 65"):
        runner.score(SOURCES[1], np.zeros(65, np.int32))
