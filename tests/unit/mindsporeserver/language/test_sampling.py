"""Sampling: each option against its definition, and independence of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mindsporeserver.language.fields.requests import SamplingOptions
from mindsporeserver.language.sampling import TokenSampler, compute_logprobs, sample

SIZE = 3000
PROMPT = np.array([1, 2, 3], np.int32)


def draw_many(logits: Any, count: int = 400, **options: Any) -> Any:
    sampler = TokenSampler(SamplingOptions(seed=5, **options), 0, PROMPT)
    return np.concatenate([sample(logits[None].copy(), [sampler]) for _ in range(count)])


@pytest.fixture(scope="module")
def logits() -> Any:
    return np.random.default_rng(1).normal(size=SIZE, scale=3).astype(np.float32)


def list_nucleus(logits: Any, top_p: float) -> set[int]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-weights)
    sums = np.cumsum(weights[order]) / weights.sum()
    return set(order[: int(np.searchsorted(sums, top_p)) + 1].tolist())


def test_zero_temperature_is_most_likely_token(logits: Any) -> None:
    assert set(draw_many(logits, 5, temperature=0)) == {int(logits.argmax())}


def test_frequencies_equal_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    counts = np.bincount(draw_many(logits, 3000), minlength=3) / 3000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=0.03)
    counts = np.bincount(draw_many(logits, 3000, temperature=0.5), minlength=3) / 3000
    np.testing.assert_allclose(counts, np.array([25, 9, 4]) / 38, atol=0.03)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_keeps_nucleus(logits: Any, top_p: float) -> None:
    assert set(draw_many(logits, top_p=top_p).tolist()) <= list_nucleus(logits, top_p)


def test_nucleus_is_the_least_that_reaches_top_p() -> None:
    random = np.random.default_rng(0)
    for scale in (0.01, 1, 8):
        logits = random.normal(size=500, scale=scale).astype(np.float32)
        for top_p in (0.1, 0.6, 0.95):
            drawn = set(draw_many(logits, 800, top_p=top_p).tolist())
            likely = np.exp(logits) / np.exp(logits).sum() > 0.012
            assert drawn <= list_nucleus(logits, top_p)
            assert drawn >= list_nucleus(logits, top_p) & set(np.flatnonzero(likely).tolist())


def test_top_k_and_min_p_keep_most_likely_tokens(logits: Any) -> None:
    best = np.argsort(-logits)
    assert set(draw_many(logits, top_k=3, temperature=2).tolist()) == set(best[:3].tolist())
    kept = np.flatnonzero(logits >= logits.max() + np.log(0.3))
    assert set(draw_many(logits, min_p=0.3, temperature=1).tolist()) == set(kept.tolist())


def test_penalties_and_bias_change_logits() -> None:
    options = SamplingOptions(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2, logit_bias={0: 3, 9: -100}
    )
    sampler = TokenSampler(options, 0, PROMPT)
    for token in (4, 4, 5):
        sampler.count(token)
    row = np.array([1, 1, -1, 1, 1, -1, 1, 1, 1, 1], np.float32)
    sampler.adjust(row)
    np.testing.assert_allclose(row, [4, 0.5, -2, 0.5, 0.5 - 1, -2 - 0.75, 1, 1, 1, -99])


def test_tokens_do_not_depend_on_batch() -> None:
    random = np.random.default_rng(3)
    rows = random.normal(size=(6, SIZE), scale=2).astype(np.float32)
    kinds: list[dict[str, Any]] = [
        {},
        {"top_p": 0.8},
        {"top_k": 40},
        {"min_p": 0.05},
        {"temperature": 0},
        {"top_p": 0.99},
    ]

    def build() -> list[TokenSampler]:
        return [TokenSampler(SamplingOptions(seed=9, **kind), index, PROMPT) for index, kind in enumerate(kinds)]

    alone = [[sample(rows[i : i + 1], [sampler])[0] for _ in range(20)] for i, sampler in enumerate(build())]
    together = build()
    batches = [sample(rows, together) for _ in range(20)]
    assert np.array(alone).T.tolist() == np.array(batches).tolist()


def test_answers_of_one_seed_differ() -> None:
    first, second = (TokenSampler(SamplingOptions(seed=1), index, PROMPT) for index in range(2))
    assert first.draw() != second.draw()
    assert (
        TokenSampler(SamplingOptions(seed=-1), 0, PROMPT).draw()
        != TokenSampler(SamplingOptions(seed=1), 0, PROMPT).draw()
    )


def test_logprobs_are_those_of_network(logits: Any) -> None:
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    found = compute_logprobs(logits, 7, 3)
    assert found.logprob == pytest.approx(expected[7], abs=1e-5)
    assert [token for token, _ in found.top] == np.argsort(-expected)[:3].tolist()
    assert compute_logprobs(logits, 7, 0).top == []


def test_end_is_not_chosen_before_min_tokens() -> None:
    sampler = TokenSampler(SamplingOptions(min_tokens=2), 0, PROMPT, stop_ids={0, 2})
    for expected in ([False, True, False], [False, True, False], [True, True, True]):
        row = np.zeros(3, np.float32)
        sampler.adjust(row)
        assert np.isfinite(row).tolist() == expected
        sampler.count(1)


def test_end_is_chosen_before_min_tokens_where_nothing_else_may_follow() -> None:
    row = np.array([1, -np.inf, 0], np.float32)
    TokenSampler(SamplingOptions(min_tokens=2), 0, PROMPT, stop_ids={0, 2}).adjust(row)
    assert row.tolist() == [1, -np.inf, 0]
