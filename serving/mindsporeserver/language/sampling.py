"""Sampling in NumPy: rows of logits to tokens, each request with its own random generator.

A row's operations depend on that row only, so a request's tokens do not depend on the batch it is computed in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mindsporeserver.language.fields.requests import SamplingOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mindsporeserver.language.grammar import Matcher

    Logits = NDArray[np.float32]

# Least weight, relative to the largest, of the tokens that are looked at first.
_LIKELY = 1e-3
_BLOCK = 128


class TokenLogprob(NamedTuple):
    """A token's log probability, before temperature and penalties.

    Args:
        token: The token ID.
        logprob: The natural logarithm.
        top: The most likely tokens with theirs, in descending order.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


class TokenSampler:
    """One answer's sampling state.

    Args:
        options: See `SamplingOptions`.
        index: The answer's index among the request's; each has its own random numbers.
        prompt: The prompt's token IDs.
        matcher: Restricts the tokens; None for all.
        stop_ids: Tokens that end the answer.
    """

    def __init__(
        self,
        options: SamplingOptions,
        index: int,
        prompt: NDArray[np.int32],
        matcher: Matcher | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        self.options = options
        self.matcher = matcher
        self._stop_ids = np.fromiter(stop_ids, np.int64, len(stop_ids))
        self._counts: Counter[int] = Counter()
        self._prompt = np.unique(prompt) if options.repetition_penalty != 1 else prompt[:0]
        seeds = None if options.seed is None else [options.seed % (1 << 64), index]
        self._generator = np.random.Generator(np.random.PCG64(seeds))
        bias = options.logit_bias
        self._bias_ids = np.fromiter(bias, np.int64, len(bias))
        self._biases = np.fromiter(bias.values(), np.float32, len(bias))

    def draw(self) -> float:
        """Return the next random number, in [0, 1)."""
        return float(self._generator.random())

    def count(self, token: int) -> None:
        """Record a generated token."""
        self._counts[token] += 1

    def adjust(self, row: Logits) -> None:
        """Apply penalties, biases, the matcher and `min_tokens` to one row of logits, in place.

        Raises:
            LanguageError: The matcher's constraint exceeds a limit.
        """
        options = self.options
        penalised = options.presence_penalty or options.frequency_penalty or options.repetition_penalty != 1
        generated = np.fromiter(self._counts, np.int64, len(self._counts) if penalised else 0)
        if options.repetition_penalty != 1:
            seen = np.union1d(self._prompt, generated)
            values = row[seen]
            penalty = np.float32(options.repetition_penalty)
            row[seen] = np.where(values > 0, values / penalty, values * penalty)
        if options.presence_penalty or options.frequency_penalty:
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            row[generated] -= np.float32(options.frequency_penalty) * counts + np.float32(options.presence_penalty)
        if options.logit_bias:
            row[self._bias_ids] += self._biases
        if self.matcher is not None:
            row[~self.matcher.compute_mask()] = -np.inf
        if options.min_tokens and self._counts.total() < options.min_tokens:
            values = row[self._stop_ids]
            row[self._stop_ids] = -np.inf
            # An answer that matches its constraint may have nothing left but its end.
            if row.max() == -np.inf:
                row[self._stop_ids] = values


def sample(logits: Logits, samplers: Sequence[TokenSampler]) -> NDArray[np.int64]:
    """Choose a token for each row.

    Args:
        logits: float32 with shape (B, V), adjusted by `TokenSampler.adjust`; at least one is finite in each row.
        samplers: One per row.

    Returns:
        Token IDs with shape (B,).
    """
    tokens: NDArray[np.int64] = np.argmax(logits, axis=1)
    random = [index for index, sampler in enumerate(samplers) if sampler.options.temperature > 0]
    if not random:
        return tokens
    temperatures = np.array([[samplers[index].options.temperature] for index in random], np.float32)
    weights = logits[random]
    weights -= weights.max(axis=1, keepdims=True)
    if (temperatures != 1).any():
        # A tiny temperature divides to -inf, which is a weight of 0.
        with np.errstate(over="ignore"):
            weights /= np.maximum(temperatures, np.float32(1e-6))
    np.exp(weights, out=weights)
    for index, row in zip(random, weights, strict=True):
        tokens[index] = _draw(row, samplers[index])
    return tokens


def compute_logprobs(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Return a token's log probability and the most likely tokens'.

    Args:
        logits: float32 with shape (V,), as the network computed them.
        token: The chosen token.
        top: Count of most likely tokens.
    """
    peak = logits.max()
    total = float(peak) + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))
    best = np.argpartition(logits, -top)[-top:] if top else np.empty(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprob(
        token, float(logits[token]) - total, [(int(item), float(logits[item]) - total) for item in best]
    )


def _draw(weights: Logits, sampler: TokenSampler) -> int:
    """Draw a token by weights relative to the largest, which is 1."""
    options, number = sampler.options, sampler.draw()
    if not options.top_k and options.top_p >= 1 and not options.min_p:
        return _invert(weights, number)
    # Most often the kept tokens are among a few hundred.
    tokens = np.flatnonzero(weights >= _LIKELY)
    if options.top_k:
        is_enough = len(tokens) >= options.top_k
    else:
        wanted = options.top_p * weights.sum(dtype=np.float64)
        is_enough = options.min_p >= _LIKELY or weights[tokens].sum(dtype=np.float64) >= wanted
    if not is_enough:
        tokens = np.arange(len(weights))
    kept = weights[tokens]
    least = options.min_p
    if 0 < options.top_k < len(kept):
        least = max(least, float(np.partition(kept, -options.top_k)[-options.top_k]))
    if least:
        kept[kept < np.float32(least)] = 0
    if options.top_p < 1:
        if options.top_k or options.min_p:
            wanted = options.top_p * kept.sum(dtype=np.float64)
        kept[kept < _find_nucleus(kept, wanted)] = 0
    return int(tokens[_invert(kept, number)])


def _find_nucleus(weights: Logits, wanted: float) -> np.float32:
    """Return the least of the largest weights whose sum reaches a value.

    Weights are added up by their exponent and first bits, and only those of one sum are sorted: sorting 50,000 takes
    longer than a step of a small network.
    """
    groups = weights.view(np.int32) >> 16
    sums = np.cumsum(np.bincount(groups, weights)[::-1])
    place = min(int(np.searchsorted(sums, wanted)), len(sums) - 1)
    members = np.sort(weights[groups == len(sums) - 1 - place])[::-1]
    before = sums[place - 1] if place else 0.0
    count = int(np.searchsorted(before + np.cumsum(members, dtype=np.float64), wanted))
    least: np.float32 = members[min(count, len(members) - 1)]
    return least


def _invert(weights: Logits, number: float) -> int:
    """Return the index at a quantile of the weights' cumulative sum, which is computed for one block only."""
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)), dtype=np.float64)
    # A product that is rounded up to the sum would select an index of weight 0.
    quantile = min(number * sums[-1], np.nextafter(sums[-1], 0))
    block = int(np.searchsorted(sums, quantile, side="right"))
    members = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    # The block's sum was rounded in another order.
    rest = min(quantile - (sums[block - 1] if block else 0.0), np.nextafter(members[-1], 0))
    return block * _BLOCK + int(np.searchsorted(members, rest, side="right"))
