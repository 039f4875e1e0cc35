"""Several requests' low-rank adapters (LoRA) in one batch, as inputs to the decoder's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.network.lora import MODULES, LoraConfig, list_parts

_WEIGHTS = ("qkv", "out")


class AdapterFactors:
    """All adapters' factors, padded to one rank with zeros.

    A layer has four arrays: the factors A (parts * count * rank, inputs) and B (outputs, parts * count * rank) for
    `qkv`, with three parts, and for `out`. A row's product with A is masked outside its own adapter, so
    that two products serve all adapters and a row without one gets zeros.

    Args:
        config: The decoder's.
        count: Most adapters; 0 for no arrays.
        rank: Highest adapter rank.
    """

    def __init__(self, config: DecoderConfig, count: int, rank: int) -> None:
        self.config, self.count, self.rank = config, count, rank
        self.arrays: list[NDArray[np.float32]] = []
        inputs = {"qkv": config.width, "out": config.heads * config.head_size}
        for _ in range(config.layers if count else 0):
            for weight in _WEIGHTS:
                sizes = list_parts(config, weight)
                columns = len(sizes) * count * rank
                self.arrays.append(np.zeros((columns, inputs[weight]), np.float32))
                self.arrays.append(np.zeros((sum(sizes), columns), np.float32))

    def write(self, number: int, adapter: Mapping[str, NDArray[np.float32]], lora: LoraConfig) -> None:
        """Replace an adapter; graphs see it without being compiled again.

        Args:
            number: From 1 to `count`.
            adapter: `TrainedDecoder.get_adapter`'s factors.
            lora: The adapter's configuration, with at most `rank`.
        """
        scale, rank = lora.lora_alpha / lora.lora_rank, lora.lora_rank
        for index in range(0, len(self.arrays), 2):
            layer, weight = index // 4, _WEIGHTS[index // 2 % 2]
            sizes = list_parts(self.config, weight)
            down = self.arrays[index].reshape(len(sizes), self.count, self.rank, -1)[:, number - 1]
            up = self.arrays[index + 1].reshape(-1, len(sizes), self.count, self.rank)[:, :, number - 1]
            down[:], up[:] = 0, 0
            for module in lora.lora_attn_modules:
                owner, part = MODULES[module]
                if owner == weight:
                    start = sum(sizes[:part])
                    prefix = f"layers.{layer}.{module}"
                    down[part, :rank] = adapter[f"{prefix}.lora_A"]
                    up[start : start + sizes[part], part, :rank] = adapter[f"{prefix}.lora_B"] * scale

    def make_masks(self, numbers: Sequence[int], rows: int, length: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the masks for `qkv` (rows * length, 3 * count * rank) and `out` (rows * length, count * rank).

        Args:
            numbers: The first rows' adapters, from 1; 0 for none. Further rows have none.
            rows: The batch's rows.
            length: Tokens per row.
        """
        chosen = np.zeros((rows, 1), np.int32)
        chosen[: len(numbers), 0] = numbers
        mask = np.repeat(np.arange(self.count * self.rank) // self.rank == chosen - 1, length, 0)
        return np.tile(mask, 3), mask
