"""A bundle's decoder with one cache per slot, for the server's executor thread and for verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.network.decode_step import FLOAT32, build_step
from kfp_mindspore.lm.network.decoder import (
    MASKED,
    CachedLayers,
    DecoderConfig,
    Head,
    compute_rotations,
    get_window_config,
    list_weights,
    mark_layers,
)
from kfp_mindspore.lm.serving.adapters import AdapterFactors
from kfp_mindspore.lm.serving.network_files import read_network_files
from kfp_mindspore.lm.sources.peft import read_adapter
from kfp_mindspore.mindir.devices import require_cpu

BATCHES = (1, 2, 4, 8, 16)
CHUNKS = (16, 64)
_LEAST_LENGTH = 256
# Of a graph: its memory and compilation serve all groups of as many layers.
_MOST_LAYERS = 8


class CausalRunner:
    """Computes prompts and single tokens against caches in NumPy.

    Graphs are compiled per batch size (1, 2, 4, 8, 16), chunk (16, 64) and cache length (256 doubled up to
    `max_length`). Caches enter them without a copy. The caches grow to the longest sequence, and shrink when a prompt
    begins in slot 0, which the scheduler does only when all slots are free.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names, float32.
        slots: Sequences at once; at most 16.
        max_length: Most tokens in a sequence.
        max_loras: Most adapters at once; 0 for a graph without adapters.
        max_lora_rank: Highest adapter rank.
        decode_operator: Computes single tokens: `float32` or `int8`, by `DecodeStep` where it is compiled, or `none`.

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
        decode_operator: str = FLOAT32,
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
        self._arrays = {name: np.ascontiguousarray(weights[name], np.float32) for name in list_weights(config)}
        # A later stage's inputs are hidden states.
        self._item: tuple[int, ...] = () if config.embeds else (config.width,)
        self._dtype: type[Any] = np.int32 if config.embeds else np.float32
        self._tables = compute_rotations(config)
        tensors = {name: Tensor.from_numpy(array) for name, array in self._arrays.items()}
        self._layers = [tensor for name, tensor in tensors.items() if name.startswith("layers.")]
        head = [name for name in tensors if name.startswith("norm.")] + ["embedding" if config.tied else "head"]
        self._head = [tensors[name] for name in head] if config.predicts else []
        self._factors = AdapterFactors(config, max_loras, max_lora_rank)
        self._adapters = [Tensor.from_numpy(array) for array in self._factors.arrays]
        self.whole_prompts = False
        self.adapter_bytes = sum(array.nbytes for array in self._factors.arrays)
        self._count = max(count for count in range(1, _MOST_LAYERS + 1) if config.layers % count == 0)
        # By group of layers.
        self._rotated = self._mark_groups(config.unrotated)
        self._whole = self._mark_groups(config.windowed)
        self._window_tables = compute_rotations(get_window_config(config)) if config.windowed else ()
        self._compute_layers = CachedLayers(config, self._count, adapted=max_loras > 0)
        self._compute_logits = Head(config)
        self._step = build_step(
            config,
            self._arrays,
            decode_operator,
            adapters=self._factors.arrays,
            loras=max_loras,
            lora_rank=max_lora_rank,
        )
        self._extents = [0] * slots
        self._cache = np.zeros((2 * config.layers, slots, config.kv_heads, 0, config.head_size), np.float32)
        self._allocate(self._fit_length(1))
        self.graph_bytes = sum(self._estimate_bytes(*size) for size in self._list_sizes())
        self.graph_bytes += self._step.copied_bytes if self._step is not None else 0

    def prefill(
        self, slot: int, ids: NDArray[Any], position: int, *, adapter: int = 0, all_positions: bool = False
    ) -> NDArray[np.float32]:
        """Compute a prompt's tokens from a position on.

        Args:
            slot: The sequence's slot.
            ids: Token IDs with shape (n,), or without `embeds` hidden states (n, width); computed in chunks of 64.
            position: How many tokens the slot holds.
            adapter: The adapter's number, from 1; 0 for the base model.
            all_positions: Whether all positions' logits are returned.

        Returns:
            The last position's logits, float32 with shape (V,); or all, (n, V). Without `predicts`, hidden states.
        """
        if slot == 0 and position == 0:
            self._extents = [0] * self.slots
            if (length := self._fit_length(len(ids))) < self._length:
                self._allocate(length)
        self._reserve(slot, position + len(ids))
        outputs, states = [], np.zeros((1, self.config.width), np.float32)
        for start in range(0, len(ids), CHUNKS[-1]):
            part = ids[start : start + CHUNKS[-1]]
            padded = self._pad(1, next(chunk for chunk in CHUNKS if chunk >= len(part)))
            padded[0, : len(part)] = part
            first = position + start
            found, rows = self._extend(slot, padded, np.array([first], np.int32), (adapter,))
            self._cache[:, slot, :, first : first + len(part)] = rows[:, 0, :, : len(part)]
            states = found[0, len(part) - 1 : len(part)]
            if all_positions:
                outputs.append(self._predict(found[0])[: len(part)])
        return np.concatenate(outputs) if all_positions else self._predict(states)[0]

    def decode(
        self, slots: Sequence[int], ids: NDArray[Any], positions: NDArray[np.int32], adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """Compute one token for each sequence.

        Args:
            slots: Their slots, the first ones: 0 to B - 1.
            ids: Token IDs with shape (B,), or hidden states (B, width).
            positions: How many tokens each slot holds, with shape (B,).
            adapters: The adapters' numbers, as `prefill` has them; empty for the base model.

        Returns:
            Logits, float32 with shape (B, V), or hidden states (B, width).

        Raises:
            ValueError: The slots are not the first ones.
        """
        count = len(slots)
        if list(slots) != list(range(count)):
            raise ValueError(f"slots: must be 0 to {count - 1}, got {list(slots)}")
        for slot in slots:
            self._reserve(slot, int(positions[slot]) + 1)
        size = min(self.slots, next(batch for batch in BATCHES if batch >= count))
        padded, starts = self._pad(size, 1), np.zeros(size, np.int32)
        padded[:count, 0], starts[:count] = ids, positions
        if self._step is not None:
            hidden = self._embed(padded, starts[:, None])[:, 0]
            tables = (*self._tables, *self._window_tables)
            found, rows = self._step.compute(hidden, starts, tables, self._whole_cache, adapters)
            rows = _replace_nonfinite(rows)
        else:
            states, rows = self._extend(0, padded, starts, adapters)
            found, rows = self._predict(states[:, 0]), rows[:, :, :, 0]
        first = np.arange(count)
        # Two separated index arrays: their axis is the first one of the selection.
        self._cache[:, first, :, positions] = rows[:, :count].swapaxes(0, 1)
        return found[:count]

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

    def list_compilations(self) -> list[Callable[[], Any]]:
        """Return one function per graph; a graph that none has compiled is compiled while a sequence waits for it."""
        return [partial(self._compile, *size) for size in self._list_sizes()]

    def _list_sizes(self) -> list[tuple[int, int, int]]:
        """Return each graph's sequences, tokens and cache length."""
        lengths = [self._fit_length(1)]
        while lengths[-1] < self.max_length:
            lengths.append(self._fit_length(lengths[-1] + 1))
        batches = sorted({min(batch, self.slots) for batch in BATCHES})
        rows = [*((1, chunk) for chunk in CHUNKS), *((batch, 1) for batch in batches)]
        return [(batch, tokens, length) for length in lengths for batch, tokens in rows]

    def _estimate_bytes(self, batch: int, tokens: int, length: int) -> int:
        """Return about a graph's memory: MindSpore 2.9 keeps all layers' intermediate values between calls."""
        config = self.config
        if tokens == 1 and self._step is not None:
            return (1 << 20) + 4 * batch * config.vocabulary_size
        heads = config.heads + 2 * config.kv_heads
        values = 8 * config.width + 5 * heads * config.head_size + 6 * config.hidden
        values += 5 * config.heads * (length + tokens)
        return (16 << 20) + 5 * self._count * batch * tokens * values

    def _compile(self, batch: int, tokens: int, length: int) -> None:
        if tokens == 1 and self._step is not None:
            # Zeros that the kernel backs with no memory: the first position reads none of them.
            whole = np.zeros((*self._cache.shape[:3], length, self.config.head_size), np.float32)
            hidden = np.zeros((batch, self.config.width), np.float32)
            tables = (*self._tables, *self._window_tables)
            self._step.compute(hidden, np.zeros(batch, np.int32), tables, Tensor.from_numpy(whole))
            # Of a prompt's last token.
            self._predict(np.zeros((1, self.config.width), np.float32))
            return
        cache = np.zeros((batch, self.config.kv_heads, length, self.config.head_size), np.float32)
        parts = [Tensor.from_numpy(cache) for _ in self._cache]
        self._compute(parts, self._pad(batch, tokens), np.zeros(batch, np.int32), ())
        self._predict(np.zeros((batch * tokens, self.config.width), np.float32))

    def _mark_groups(self, layers: Sequence[int]) -> list[Any]:
        marks = mark_layers(self.config, layers).reshape(-1, self._count)
        return [Tensor(values) for values in marks] if layers else []

    def _pad(self, batch: int, length: int) -> NDArray[Any]:
        return np.zeros((batch, length, *self._item), self._dtype)

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
        self._whole_cache = Tensor.from_numpy(cache)
        # Tensors of a cache's parts by first slot and count: they share its memory, and see later writes.
        self._parts: dict[tuple[int, int], list[Any]] = {}

    def _extend(
        self, slot: int, ids: NDArray[Any], positions: NDArray[np.int32], adapters: Sequence[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        count = len(ids)
        parts = self._parts.get((slot, count))
        if parts is None:
            parts = [Tensor.from_numpy(layer[slot : slot + count]) for layer in self._cache]
            self._parts[slot, count] = parts
        return self._compute(parts, ids, positions, adapters)

    def _compute(
        self, parts: Sequence[Any], ids: NDArray[Any], positions: NDArray[np.int32], adapters: Sequence[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the hidden states (B, S, width), and the new rows (2 * layers, B, kv_heads, S, head_size)."""
        batch, length = ids.shape[:2]
        # Padding may lie beyond the tables.
        steps = np.minimum(positions[:, None] + np.arange(length), self.config.max_length - 1)
        arrays = [self._embed(ids, steps), *(table[steps][:, None] for table in self._tables)]
        seen = np.arange(length) <= np.arange(length)[:, None]
        arrays.append(np.broadcast_to(np.where(seen, 0, MASKED), (batch, 1, length, length)))
        cached = np.arange(parts[0].shape[2]) < positions[:, None]
        arrays.append(np.where(cached, 0, MASKED)[:, None, None])
        count = len(arrays)
        if self._whole:
            arrays += [table[steps][:, None] for table in self._window_tables]
            arrays += list_window_masks(self.config.window, positions, length, parts[0].shape[2])
        tensors = [Tensor.from_numpy(np.ascontiguousarray(array, np.float32)) for array in arrays]
        states, inputs, windows = tensors[0], tensors[1:count], tensors[count:]
        masks = []
        if self._adapters:
            masks = [Tensor.from_numpy(mask) for mask in self._factors.make_masks(adapters, batch, length)]
        rows, groups = [], self.config.layers // self._count
        for group in range(groups):
            caches, layers, factors = (
                tensors[len(tensors) // groups * group :][: len(tensors) // groups]
                for tensors in (parts, self._layers, self._adapters)
            )
            marks = (*self._rotated[group : group + 1], *windows, *self._whole[group : group + 1])
            states, new = self._compute_layers.compile_and_run(
                states, *inputs, *caches, *layers, *masks, *factors, *marks
            )
            rows.append(new.asnumpy())
        return states.asnumpy(), _replace_nonfinite(np.concatenate(rows))

    def _embed(self, ids: NDArray[Any], steps: NDArray[Any]) -> NDArray[np.float32]:
        if not self.config.embeds:
            return ids
        hidden: NDArray[np.float32] = self._arrays["embedding"][ids]
        return hidden if self.config.rope_theta else hidden + self._arrays["positions"][steps]

    def _predict(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits (n, V) for hidden states (n, width), or without `predicts` these."""
        if not self.config.predicts:
            return states
        logits: NDArray[np.float32] = self._compute_logits.compile_and_run(
            Tensor.from_numpy(np.ascontiguousarray(states)), *self._head
        ).asnumpy()
        return logits


def list_window_masks(window: int, positions: NDArray[np.int32], tokens: int, length: int) -> list[NDArray[Any]]:
    """Return what windowed layers add to the masks, for new tokens (1, 1, S, S) and for cached ones (B, 1, S, L).

    Args:
        window: Tokens that a token attends to, itself included.
        positions: The first new token's, by sequence.
        tokens: New ones by sequence.
        length: The cache's.
    """
    steps = np.arange(tokens)
    new = np.where(steps[:, None] - steps < window, 0, MASKED)
    distances = (positions[:, None] + steps)[:, :, None] - np.arange(length)
    return [new[None, None], np.where(distances < window, 0, MASKED)[:, None]]


def _replace_nonfinite(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a cache's rows with zeros for NaN and infinity, of which this sequence's logits are NaN already.

    A masked NaN in the cache would spread to the slot's next sequence.
    """
    return np.where(np.isfinite(rows), rows, np.float32(0))


def load(
    directory: Path | str,
    *,
    slots: int,
    max_length: int,
    max_loras: int = 0,
    max_lora_rank: int = 16,
    decode_operator: str = FLOAT32,
) -> CausalRunner:
    """Load a bundle's network; its graphs are not compiled yet.

    Args:
        directory: The bundle.
        slots: Sequences at once.
        max_length: Most tokens in a sequence.
        max_loras: Most adapters at once; 0 for a graph without adapters.
        max_lora_rank: Highest adapter rank.
        decode_operator: `float32`, `int8` or `none`, see `CausalRunner`.

    Raises:
        CorruptBundleError: The configuration or weights are not readable; the message names the file.
    """
    require_cpu("language models, whose caches are the host's memory")
    config, weights = read_network(Path(directory))
    sizes = {"slots": slots, "max_length": max_length, "max_loras": max_loras, "max_lora_rank": max_lora_rank}
    return CausalRunner(config, weights, decode_operator=decode_operator, **sizes)


def read_network(directory: Path) -> tuple[DecoderConfig, dict[str, NDArray[np.float32]]]:
    """Read a bundle's configuration and weights.

    Args:
        directory: The bundle.

    Raises:
        CorruptBundleError: A file is not readable, or the weights do not fit the configuration.
    """
    return read_network_files(directory, DecoderConfig, list_weights)
