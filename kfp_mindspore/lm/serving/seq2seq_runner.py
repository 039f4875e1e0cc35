"""An encoder-decoder with caches per slot, as the server's scheduler computes decoders, and for verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.network.decoder import MASKED
from kfp_mindspore.lm.network.seq2seq import (
    Seq2SeqDecoder,
    Seq2SeqEncoder,
    compute_buckets,
    compute_square_buckets,
    list_seq2seq_weights,
)
from kfp_mindspore.lm.sources.t5 import SourceSeq2Seq

_LEAST_LENGTH = 16


class Seq2SeqRunner:
    """Computes sources and single answer tokens against caches in NumPy.

    A slot holds a source's keys and values for the cross-attention, and its answer's, the start token first.
    All slots are computed in one graph, which is compiled per source and answer length (16, 32, …). The caches
    shrink when a source begins in slot 0, which the scheduler does only when all slots are free.

    Args:
        model: The encoder-decoder.
        slots: Sequences at once.
        max_length: Most tokens in a source and its answer.
    """

    # The encoder attends to the whole source: it cannot be computed in chunks, nor from another source's beginning.
    whole_prompts = True
    adapter_bytes = graph_bytes = 0
    _lengths: NDArray[np.int32]
    _sources: NDArray[np.int32]
    _cross: NDArray[np.float32]
    _cache: NDArray[np.float32]

    def __init__(self, model: SourceSeq2Seq, *, slots: int, max_length: int) -> None:
        config = model.config
        self.config, self.slots, self.max_length = config, slots, max_length
        self.vocabulary_size, self.start_id = config.vocabulary_size, model.generation["decoder_start_token_id"]
        self.row_bytes = config.decoder_layers * 2 * config.heads * config.head_size * 4
        names = list_seq2seq_weights(config)
        self._weights = [Tensor.from_numpy(np.ascontiguousarray(model.weights[name], np.float32)) for name in names]
        self._encoder = Seq2SeqEncoder(config)
        self._decoder, self._full = Seq2SeqDecoder(config, cached=True), Seq2SeqDecoder(config)
        self._reset()

    def prefill(
        self, slot: int, ids: NDArray[np.int32], position: int, *, adapter: int = 0, all_positions: bool = False
    ) -> NDArray[np.float32]:
        """Compute a whole source and the start token.

        Args:
            slot: The sequence's slot.
            ids: The source's token IDs with shape (n,).
            position: 0.
            adapter: 0.
            all_positions: False.

        Returns:
            The logits for the answer's first token, float32 with shape (V,).

        Raises:
            ValueError: Another value of these.
        """
        if position or adapter or all_positions:
            raise ValueError("an encoder-decoder computes a whole source, without adapters, and one token's logits")
        config = self.config
        if slot == 0:
            self._reset()
        padded, cross = self._encode(ids)
        if padded.shape[1] > self._sources.shape[1]:
            self._cross = self._allocate(padded.shape[1], self._cross)
            sources = np.full((self.slots, padded.shape[1]), config.pad_id, np.int32)
            sources[:, : self._sources.shape[1]] = self._sources
            self._sources = sources
        self._lengths[slot] = len(ids)
        self._sources[slot] = config.pad_id
        self._sources[slot, : len(ids)] = ids
        self._cross[:, slot] = 0
        self._cross[:, slot, :, : padded.shape[1]] = cross.asnumpy()[:, 0]
        # Other slots' rows are computed too, and not written.
        start = np.full(self.slots, self.start_id, np.int32)
        logits: NDArray[np.float32] = self._step([slot], start, np.zeros(self.slots, np.int32))[slot]
        return logits

    def decode(
        self, slots: Sequence[int], ids: NDArray[np.int32], positions: NDArray[np.int32], adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """Compute one token for each sequence.

        Args:
            slots: Their slots, the first ones: 0 to B - 1.
            ids: Token IDs with shape (B,).
            positions: How many source and answer tokens precede, with shape (B,).
            adapters: Zeros, or empty.

        Returns:
            Logits, float32 with shape (B, V).
        """
        count = len(slots)
        tokens, steps = np.zeros((2, self.slots), np.int32)
        # The start token is before the answer's.
        tokens[:count], steps[:count] = ids, positions - self._lengths[:count] + 1
        return self._step(slots, tokens, steps)[:count]

    def score(self, source: NDArray[np.int32], answer: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return a full forward pass's logits, without caches, float32 (n, V).

        Args:
            source: Token IDs, int32 (n,).
            answer: The answer's token IDs, int32 (n,); each step's logits follow those before it.

        Raises:
            ValidationError: The source or the answer is empty or too long.
        """
        self.check([source], len(answer))
        padded, cross = self._encode(source)
        # Later steps do not change earlier ones: one graph serves several lengths.
        steps = np.full((1, _fit_length(len(answer))), self.start_id, np.int32)
        steps[0, 1 : len(answer)] = answer[:-1]
        buckets = compute_square_buckets(self.config, steps.shape[1], bidirectional=False)
        mask = np.triu(np.full(buckets.shape, MASKED, np.float32), 1)
        inputs = [Tensor.from_numpy(array) for array in (steps, padded, buckets, mask)]
        logits = self._full.compile_and_run(*inputs, cross, *self._weights)[0].asnumpy()
        scores: NDArray[np.float32] = logits[: len(answer)]
        return scores

    def check(self, sources: Sequence[NDArray[np.int32]], max_tokens: int) -> None:
        """Check lengths against the configuration's `max_length`.

        Args:
            sources: Token IDs, int32 (n,) each.
            max_tokens: Most tokens in an answer.

        Raises:
            ValidationError: A source is empty or too long, or `max_tokens` is out of range.
        """
        most = self.config.max_length
        errors = [
            f"sources[{index}]: must have 1 to {most} tokens, got {len(source)}"
            for index, source in enumerate(sources)
            if not 1 <= len(source) <= most
        ]
        if not 1 <= max_tokens <= most:
            errors.append(f"max_tokens: must be from 1 to {most}, got {max_tokens}")
        if errors:
            raise ValidationError(errors)

    def read_adapter(self, directory: Path) -> Callable[[int], None]:
        """Refuse an adapter.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{directory}: adapters are for decoders, this model is an encoder-decoder")

    def list_compilations(self) -> list[Callable[[], Any]]:
        """Return a function that compiles the graphs for short sources; others are compiled when they are needed."""
        return [lambda: self.prefill(0, np.ones(1, np.int32), 0)]

    def read_rows(self, slot: int, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Copy a slot's source and caches, whatever the tokens."""
        length = self._lengths[slot : slot + 1].copy()
        return length, self._sources[slot].copy(), self._cross[:, slot].copy(), self._cache[:, slot].copy()

    def write_rows(self, slot: int, start: int, rows: tuple[NDArray[Any], ...]) -> None:
        """Write what `read_rows` returned."""
        self._lengths[slot], self._sources[slot] = rows[0][0], rows[1]
        self._cross[:, slot], self._cache[:, slot] = rows[2:]

    def _reset(self) -> None:
        self._lengths = np.zeros(self.slots, np.int32)
        self._sources = np.full((self.slots, _LEAST_LENGTH), self.config.pad_id, np.int32)
        self._cross, self._cache = (self._allocate(_LEAST_LENGTH) for _ in range(2))

    def _encode(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.int32], Tensor]:
        """Return a source with padding, (1, S), and its keys and values for the decoder layers."""
        padded = np.full((1, _fit_length(len(ids))), self.config.pad_id, np.int32)
        padded[0, : len(ids)] = ids
        buckets = compute_square_buckets(self.config, padded.shape[1], bidirectional=True)
        inputs = (Tensor.from_numpy(padded), Tensor.from_numpy(buckets))
        return padded, self._encoder.compile_and_run(*inputs, *self._weights)

    def _allocate(self, length: int, old: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        config = self.config
        shape = (2 * config.decoder_layers, self.slots, config.heads, length, config.head_size)
        cache = np.zeros(shape, np.float32)
        if old is not None:
            cache[:, :, :, : old.shape[3]] = old
        return cache

    def _step(self, slots: Sequence[int], ids: NDArray[np.int32], steps: NDArray[np.int32]) -> NDArray[np.float32]:
        """Compute a token for all slots, write some slots' rows, and return all logits, (slots, V)."""
        config, longest = self.config, int(steps.max()) + 1
        if longest > self._cache.shape[3]:
            self._cache = self._allocate(_fit_length(longest), self._cache)
        length = self._cache.shape[3]
        places = np.arange(length + 1)
        # The computed token is the last one, whatever its step.
        distances = np.where(places == length, 0, places - steps[:, None])
        buckets = compute_buckets(config, distances, bidirectional=False)[:, None]
        visible = (places < steps[:, None]) | (places == length)
        mask = np.where(visible, np.float32(0), np.float32(MASKED))[:, None]
        parts = (ids[:, None], self._sources, buckets, mask, self._cross, *self._cache)
        arrays = [np.ascontiguousarray(part) for part in parts]
        logits, rows = self._decoder.compile_and_run(*map(Tensor.from_numpy, arrays), *self._weights)
        computed = rows.asnumpy()[:, :, :, 0]
        for slot in slots:
            # A masked NaN in the cache would spread to the slot's next sequence.
            self._cache[:, slot, :, steps[slot]] = np.nan_to_num(computed[:, slot], posinf=0, neginf=0)
        scores: NDArray[np.float32] = logits.asnumpy()
        return scores


def _fit_length(count: int) -> int:
    length = _LEAST_LENGTH
    while length < count:
        length *= 2
    return length
