"""A bundle's decoder with one cache per slot, for the server's executor thread and for verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.adapters import AdapterFactors
from kfp_mindspore.lm.finetune import read_adapter
from kfp_mindspore.lm.network import Decoder, DecoderConfig, compute_rotations, list_weights
from kfp_mindspore.lm.network_files import read_network_files

BATCHES = (1, 2, 4, 8, 16)
CHUNKS = (16, 64)
_LEAST_LENGTH = 256


class CausalRunner:
    """Computes prompts and single tokens against caches in NumPy.

    Graphs are compiled per batch size (1, 2, 4, 8, 16), chunk (16, 64) and cache length (256 doubled up to
    `max_length`). Caches enter them without a copy. The caches grow to the longest sequence, and shrink when a prompt
    begins in slot 0, which the scheduler does only when all slots are free.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names, float32.
        slots: Sequences at once; at most 16.
        max_length: Most tokens of a sequence.
        max_loras: Most adapters at once; 0 for a graph without adapters.
        max_lora_rank: Most rank of an adapter.

    Raises:
        UserError: `slots` or `max_length` is beyond the limit.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, NDArray[np.float32]],
        *,
        slots: int,
        max_length: int,
        max_loras: int = 0,
        max_lora_rank: int = 16,
    ) -> None:
        if not 1 <= slots <= BATCHES[-1]:
            raise UserError(f"slots: must be from 1 to {BATCHES[-1]}, got {slots}")
        if not 1 <= max_length <= config.max_length:
            raise UserError(
                f"max_length: must be from 1 to {config.max_length}, the model's positions, got {max_length}"
            )
        self.config = config
        self.vocabulary_size, self.max_length, self.slots = config.vocabulary_size, max_length, slots
        self.row_bytes = config.layers * 2 * config.kv_heads * config.head_size * 4
        self._arrays = [np.ascontiguousarray(weights[name], np.float32) for name in list_weights(config)]
        self._head = self._arrays[0] if config.tied else self._arrays[-1]
        self._tables = [Tensor.from_numpy(table) for table in compute_rotations(config)]
        self._weights = [Tensor.from_numpy(array) for array in self._arrays]
        self._factors = AdapterFactors(config, max_loras, max_lora_rank)
        self._adapters = [Tensor.from_numpy(array) for array in self._factors.arrays]
        self.adapter_bytes = sum(array.nbytes for array in self._factors.arrays)
        self._decoder = Decoder(config, cached=True, adapted=max_loras > 0)
        self._extents = [0] * slots
        self._cache = np.zeros((2 * config.layers, slots, config.kv_heads, 0, config.head_size), np.float32)
        self._allocate(self._fit_length(1))

    def prefill(
        self, slot: int, ids: NDArray[np.int32], position: int, *, adapter: int = 0, all_positions: bool = False
    ) -> NDArray[np.float32]:
        """Compute a prompt's tokens from a position on.

        Args:
            slot: The sequence's slot.
            ids: Token IDs with shape (n,); computed in chunks of 64.
            position: Count of tokens that the slot holds.
            adapter: The adapter's number, from 1; 0 for the base model.
            all_positions: Whether all positions' logits are returned.

        Returns:
            The last position's logits, float32 with shape (V,); or all, (n, V).
        """
        if slot == 0 and position == 0:
            self._extents = [0] * self.slots
            if (length := self._fit_length(len(ids))) < self._length:
                self._allocate(length)
        self._reserve(slot, position + len(ids))
        hidden, logits = [], np.zeros((1, self.vocabulary_size), np.float32)
        for start in range(0, len(ids), CHUNKS[-1]):
            part = ids[start : start + CHUNKS[-1]]
            size = next(chunk for chunk in CHUNKS if chunk >= len(part))
            padded = np.zeros((1, size), np.int32)
            padded[0, : len(part)] = part
            first = position + start
            last = np.array([len(part) - 1], np.int32)
            logits, states, rows = self._extend(slot, padded, np.array([first], np.int32), last, (adapter,))
            self._cache[:, slot, :, first : first + len(part)] = rows[:, 0, :, : len(part)]
            if all_positions:
                hidden.append(states.asnumpy()[0, : len(part)])
        if all_positions:
            scores: NDArray[np.float32] = np.concatenate(hidden) @ self._head.T
            return scores
        final: NDArray[np.float32] = logits[0]
        return final

    def decode(
        self, slots: Sequence[int], ids: NDArray[np.int32], positions: NDArray[np.int32], adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """Compute one token for each sequence.

        Args:
            slots: Their slots, the first ones: 0 to B - 1.
            ids: Token IDs with shape (B,).
            positions: Count of tokens that each slot holds, with shape (B,).
            adapters: The adapters' numbers, as `prefill` has them; empty for the base model.

        Returns:
            Logits, float32 with shape (B, V).

        Raises:
            ValueError: The slots are not the first ones.
        """
        count = len(slots)
        if list(slots) != list(range(count)):
            raise ValueError(f"slots: must be 0 to {count - 1}, got {list(slots)}")
        for slot in slots:
            self._reserve(slot, int(positions[slot]) + 1)
        size = min(self.slots, next(batch for batch in BATCHES if batch >= count))
        padded = np.zeros((2, size), np.int32)
        padded[0, :count], padded[1, :count] = ids, positions
        logits, _, rows = self._extend(0, padded[0][:, None], padded[1], np.zeros(size, np.int32), adapters)
        first = np.arange(count)
        # Two separated index arrays: their axis is the first one of the selection.
        self._cache[:, first, :, positions] = rows[:, :count, :, 0].swapaxes(0, 1)
        return logits[:count]

    def read_adapter(self, directory: Path | str) -> Callable[[int], None]:
        """Read an adapter in peft's format, in any thread, and return a function that stores it under a number.

        Storing replaces the number's adapter, in the executor thread; graphs are not compiled again.

        Args:
            directory: With adapter_config.json and adapter_model.safetensors.

        Raises:
            UserError: It is no adapter for this network, or its rank is above the limit; the message names the field.
        """
        adapter, lora = read_adapter(Path(directory), self.config)
        if lora.lora_rank > self._factors.rank:
            raise UserError(
                f"{directory}: adapter_config.json: r: must be at most {self._factors.rank} (--max-lora-rank), "
                f"got {lora.lora_rank}"
            )
        return lambda number: self._factors.write(number, adapter, lora)

    def read_rows(self, slot: int, start: int, stop: int) -> NDArray[np.float32]:
        """Copy the cache rows for tokens from `start` to before `stop`, (n, 2 * layers, heads, size)."""
        return self._cache[:, slot, :, start:stop].transpose(2, 0, 1, 3).copy()

    def write_rows(self, slot: int, start: int, rows: NDArray[np.float32]) -> None:
        """Write what `read_rows` returned, from token `start` on."""
        self._reserve(slot, start + len(rows))
        self._cache[:, slot, :, start : start + len(rows)] = rows.transpose(1, 2, 0, 3)

    def warm(self) -> None:
        """Compile the graphs for the shortest caches; longer ones are compiled when a sequence needs them."""
        one = np.zeros(1, np.int32)
        for chunk in CHUNKS:
            self._extend(0, np.zeros((1, chunk), np.int32), one, one)
        for size in sorted({min(batch, self.slots) for batch in BATCHES}):
            self._extend(0, np.zeros((size, 1), np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32))

    def _fit_length(self, length: int) -> int:
        size = _LEAST_LENGTH
        while size < length:
            size *= 2
        return min(size, self.max_length)

    def _reserve(self, slot: int, length: int) -> None:
        if length > self.max_length:
            raise ValueError(f"slot {slot}: at most {self.max_length} tokens, got {length}")
        self._extents[slot] = length
        if length > self._length:
            self._allocate(self._fit_length(length))

    def _allocate(self, length: int) -> None:
        config = self.config
        cache = np.zeros((2 * config.layers, self.slots, config.kv_heads, length, config.head_size), np.float32)
        if extent := min(max(self._extents), length, self._cache.shape[3]):
            cache[:, :, :, :extent] = self._cache[:, :, :, :extent]
        self._cache, self._length = cache, length
        # Tensors of a cache's parts by first slot and count: they share its memory, and see later writes.
        self._parts: dict[tuple[int, int], list[Any]] = {}

    def _extend(
        self,
        slot: int,
        ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        last: NDArray[np.int32],
        adapters: Sequence[int] = (),
    ) -> tuple[NDArray[np.float32], Any, NDArray[np.float32]]:
        count = len(ids)
        parts = self._parts.get((slot, count))
        if parts is None:
            parts = [Tensor.from_numpy(layer[slot : slot + count]) for layer in self._cache]
            self._parts[slot, count] = parts
        inputs = [Tensor.from_numpy(np.ascontiguousarray(array)) for array in (ids, positions, last)]
        tensors = [*inputs, *self._tables, *parts, *self._weights]
        if self._adapters:
            tensors += [Tensor.from_numpy(mask) for mask in self._factors.make_masks(adapters, *ids.shape)]
            tensors += self._adapters
        logits, hidden, rows = self._decoder.compile_and_run(*tensors)
        computed = rows.asnumpy()
        # A masked NaN in the cache would spread to the slot's next sequence; this sequence's logits are NaN already.
        return logits.asnumpy(), hidden, np.where(np.isfinite(computed), computed, np.float32(0))


def load(
    directory: Path | str, *, slots: int, max_length: int, max_loras: int = 0, max_lora_rank: int = 16
) -> CausalRunner:
    """Load a bundle's network and compile its first graphs.

    Args:
        directory: The bundle.
        slots: Sequences at once.
        max_length: Most tokens of a sequence.
        max_loras: Most adapters at once; 0 for a graph without adapters.
        max_lora_rank: Most rank of an adapter.

    Raises:
        CorruptBundleError: Its configuration or weights are not readable; the message names the file.
    """
    config, weights = read_network(Path(directory))
    runner = CausalRunner(
        config, weights, slots=slots, max_length=max_length, max_loras=max_loras, max_lora_rank=max_lora_rank
    )
    runner.warm()
    return runner


def read_network(directory: Path) -> tuple[DecoderConfig, dict[str, NDArray[np.float32]]]:
    """Read a bundle's configuration and weights.

    Args:
        directory: The bundle.

    Raises:
        CorruptBundleError: A file is not readable, or the weights do not fit the configuration.
    """
    return read_network_files(directory, DecoderConfig, list_weights)
