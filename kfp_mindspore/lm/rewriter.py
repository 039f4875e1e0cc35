"""Greedy answers of an encoder-decoder, and sources and targets as arrays for its training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.seq2seq import (
    Decoder,
    Encoder,
    Seq2SeqConfig,
    compute_buckets,
    compute_square_buckets,
    list_seq2seq_weights,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MASKED = -1e9
_LARGEST_BATCH = 32
_LEAST_LENGTH = 16


class Seq2SeqRunner:
    """Computes greedy answers, several at once.

    A source is encoded once, and the cross-attention's keys and values with it. Graphs are compiled when first needed,
    for batches (1, 2, 4, … 32), sources and answers (16, 32, … tokens).

    Args:
        config: The encoder-decoder's.
        weights: Arrays by `list_seq2seq_weights`' names, float32.
        start_id: The decoder's first token.
        eos_ids: Tokens that end an answer.
    """

    def __init__(
        self,
        config: Seq2SeqConfig,
        weights: Mapping[str, NDArray[np.float32]],
        *,
        start_id: int,
        eos_ids: Collection[int],
    ) -> None:
        self.config, self.start_id, self.eos_ids = config, start_id, tuple(eos_ids)
        names = list_seq2seq_weights(config)
        self._weights = [Tensor.from_numpy(np.ascontiguousarray(weights[name], np.float32)) for name in names]
        self._encoder = Encoder(config)
        self._decoder, self._full = Decoder(config, cached=True), Decoder(config)

    def generate(self, sources: Sequence[NDArray[np.int32]], *, max_tokens: int = 64) -> list[NDArray[np.int32]]:
        """Return the greedy answers' token IDs without the end token, int32 (n,) each.

        Args:
            sources: Token IDs, int32 (n,) each.
            max_tokens: Most tokens of an answer.

        Raises:
            ValidationError: A source is empty or too long, or `max_tokens` is out of range.
        """
        answers: list[NDArray[np.int32]] = [np.zeros(0, np.int32)] * len(sources)
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        for start in range(0, len(order), _LARGEST_BATCH):
            rows = order[start : start + _LARGEST_BATCH]
            ids, _ = self.generate_steps([sources[row] for row in rows], max_tokens=max_tokens)
            for row, answer in zip(rows, ids, strict=True):
                ends = np.flatnonzero(np.isin(answer, self.eos_ids))
                answers[row] = answer[: ends[0]] if len(ends) else answer
        return answers

    def generate_steps(
        self, sources: Sequence[NDArray[np.int32]], *, max_tokens: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return a batch's tokens and logits of all steps until each answer has ended.

        Args:
            sources: At most 32, token IDs, int32 (n,) each.
            max_tokens: Most steps.

        Returns:
            Token IDs, int32 (B, steps), and logits, float32 (B, steps, V).

        Raises:
            ValidationError: A source is empty or too long, or `max_tokens` is out of range.
        """
        config, count = self.config, len(sources)
        self._check(sources, max_tokens)
        batch = fit_size(count, 1)
        ids = self._pad(sources, batch)
        source, cross = Tensor.from_numpy(ids), self._encode(ids)
        length = fit_size(max_tokens, _LEAST_LENGTH)
        caches = np.zeros((2 * config.decoder_layers, batch, config.heads, length, config.head_size), np.float32)
        # The tensors share the caches' memory, and see later writes.
        tensors = [Tensor.from_numpy(cache) for cache in caches]
        slots, last = np.arange(length + 1), np.full((batch, 1), self.start_id, np.int32)
        tokens: list[NDArray[np.int32]] = []
        logits: list[NDArray[np.float32]] = []
        ended = np.zeros(count, np.bool_)
        while len(tokens) < max_tokens and not ended.all():
            position = len(tokens)
            places = np.where(slots == length, position, slots)
            buckets = compute_buckets(config, places - position, bidirectional=False)[None]
            visible = (slots < position) | (slots == length)
            mask = np.where(visible, np.float32(0), np.float32(_MASKED))[None]
            inputs = (Tensor.from_numpy(last), source, Tensor.from_numpy(buckets), Tensor.from_numpy(mask))
            scores, rows = self._decoder.compile_and_run(*inputs, cross, *tensors, *self._weights)
            caches[:, :, :, position] = rows.asnumpy()[:, :, :, 0]
            step = scores.asnumpy()
            last = step.argmax(-1).astype(np.int32)[:, None]
            tokens.append(last[:count, 0])
            logits.append(step[:count])
            ended |= np.isin(tokens[-1], self.eos_ids)
        return np.stack(tokens, 1), np.stack(logits, 1)

    def score(self, source: NDArray[np.int32], answer: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the logits of a full forward pass without caches, float32 (n, V).

        Args:
            source: Token IDs, int32 (n,).
            answer: The answer's token IDs, int32 (n,); each step's logits follow those before it.
        """
        self._check([source], len(answer))
        ids = self._pad([source], 1)
        # Later steps do not change earlier ones: one graph serves several lengths.
        steps = np.full((1, fit_size(len(answer), _LEAST_LENGTH)), self.start_id, np.int32)
        steps[0, 1 : len(answer)] = answer[:-1]
        buckets = compute_square_buckets(self.config, steps.shape[1], bidirectional=False)
        mask = np.triu(np.full(buckets.shape, _MASKED, np.float32), 1)
        inputs = [Tensor.from_numpy(array) for array in (steps, ids, buckets, mask)]
        logits = self._full.compile_and_run(*inputs, self._encode(ids), *self._weights)[0].asnumpy()
        scores: NDArray[np.float32] = logits[: len(answer)]
        return scores

    def _check(self, sources: Sequence[NDArray[np.int32]], max_tokens: int) -> None:
        most = self.config.max_length
        errors = [
            f"sources[{index}]: must have 1 to {most} tokens, got {len(source)}"
            for index, source in enumerate(sources)
            if not 1 <= len(source) <= most
        ]
        if not 1 <= max_tokens <= most:
            errors.append(f"max_tokens: must be from 1 to {most}, got {max_tokens}")
        if not 1 <= len(sources) <= _LARGEST_BATCH:
            errors.append(f"sources: must be from 1 to {_LARGEST_BATCH}, got {len(sources)}")
        if errors:
            raise ValidationError(errors)

    def _pad(self, sources: Sequence[NDArray[np.int32]], batch: int) -> NDArray[np.int32]:
        ids = np.full((batch, fit_size(max(map(len, sources)), _LEAST_LENGTH)), self.config.pad_id, np.int32)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        return ids

    def _encode(self, ids: NDArray[np.int32]) -> Any:
        buckets = compute_square_buckets(self.config, ids.shape[1], bidirectional=True)
        return self._encoder.compile_and_run(Tensor.from_numpy(ids), Tensor.from_numpy(buckets), *self._weights)


class Rewriter:
    """Rewrites texts by an encoder-decoder and its tokenizer.

    Args:
        runner: The network.
        tokenizer: The model's; it ends a source itself where the model needs that.
    """

    def __init__(self, runner: Seq2SeqRunner, tokenizer: Tokenizer) -> None:
        self.runner, self.tokenizer = runner, tokenizer

    def rewrite(self, texts: Iterable[str], *, max_tokens: int = 64) -> list[str]:
        """Return the greedy answer to each text.

        Args:
            texts: Sources.
            max_tokens: Most tokens of an answer.

        Raises:
            ValidationError: A text is too long, or `max_tokens` is out of range.
        """
        sources = [np.array(encoding.ids, np.int32) for encoding in self.tokenizer.encode_batch(list(texts))]
        answers = self.runner.generate(sources, max_tokens=max_tokens)
        return [self.tokenizer.decode(answer.tolist()) for answer in answers]


def build_pairs(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, start_id: int, pad_id: int
) -> dict[str, NDArray[Any]]:
    """Return sources and targets as `fit`'s data for a `TrainedSeq2Seq`.

    Args:
        pairs: Sources and targets.
        tokenizer: The model's, which ends sources and targets.
        start_id: The decoder's first token.
        pad_id: Token that pads both.

    Returns:
        `source` int32 (N, S), `ids` and `next_ids` int32 (N, T), `counts` float32 (N, T); S and T are those of the
        longest text.

    Raises:
        ValidationError: There are no pairs.
    """
    if not pairs:
        raise ValidationError(["pairs: at least one is needed, got none"])
    sources, targets = ([row.ids for row in tokenizer.encode_batch([pair[side] for pair in pairs])] for side in (0, 1))
    source, ids, next_ids = (
        np.full((len(pairs), max(map(len, texts))), pad_id, np.int32) for texts in (sources, targets, targets)
    )
    counts = np.zeros(ids.shape, np.float32)
    ids[:, 0] = start_id
    for row, (text, target) in enumerate(zip(sources, targets, strict=True)):
        source[row, : len(text)] = text
        ids[row, 1 : len(target)] = target[:-1]
        next_ids[row, : len(target)] = target
        counts[row, : len(target)] = 1
    return {"source": source, "ids": ids, "next_ids": next_ids, "counts": counts}


def fit_size(count: int, least: int) -> int:
    """Return the least of `least`, its double and so on that is at least `count`."""
    size = least
    while size < count:
        size *= 2
    return size
