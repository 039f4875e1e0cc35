"""Training of an imported decoder by `fit`: all weights, or low-rank adapters (LoRA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from kfp_mindspore.lm.network.decoder import MASKED, Decoder, DecoderConfig, compute_rotations, list_weights
from kfp_mindspore.lm.network.lora import MODULES, LoraConfig, list_parts, merge_adapter
from kfp_mindspore.lm.text.data import LanguageModelData


class TrainedDecoder(nn.Cell):  # type: ignore[misc]
    """A decoder that returns its loss, for `fit` without a loss function.

    The loss is the sum over counted tokens divided by the windows and by `tokens_per_window`, a constant. So `fit`'s
    means over samples are exact token-weighted means, whatever the accumulation and worker count.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names, float32; with an adapter they are frozen.
        tokens_per_window: Mean number of counted tokens in the data's windows.
        lora: The adapter's configuration; None trains all weights.
        seed: Seed for the adapter's initial values; its update is 0 at first.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, NDArray[np.float32]],
        *,
        tokens_per_window: float,
        lora: LoraConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config, self.lora = config, lora
        self.decoder = Decoder(config, adapted=lora is not None, dropout=lora.lora_dropout if lora is not None else 0.0)
        names = list(list_weights(config))
        self.base = ms.ParameterTuple(
            [Parameter(Tensor(weights[name]), name=name, requires_grad=lora is None) for name in names]
        )
        tables = compute_rotations(config)
        self.tables = (Tensor(tables[0]), Tensor(tables[1]))
        self.tokens_per_window = tokens_per_window
        self.head_index = names.index("embedding" if config.tied else "head")
        self.dense = ops.MatMul(transpose_b=True)
        # Of each layer's `qkv` and `out`: the parts' heights, their first factors, -1 without an update, and the width.
        self.parts: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = ()
        self.factors = ms.ParameterTuple(self._create_factors(seed) if lora is not None else [])
        self.scale = lora.lora_alpha / lora.lora_rank if lora is not None else 0.0
        self.rank = lora.lora_rank if lora is not None else 0
        self.whole = Tensor([[True]])

    def _create_factors(self, seed: int) -> list[Parameter]:
        assert self.lora is not None
        random, rank = np.random.default_rng(seed), self.lora.lora_rank
        shapes = list_weights(self.config)
        factors: list[Parameter] = []
        for layer in range(self.config.layers):
            for weight in ("qkv", "out"):
                sizes, width = list_parts(self.config, weight), shapes[f"layers.{layer}.{weight}.weight"][1]
                firsts = [-1] * len(sizes)
                for module in self.lora.lora_attn_modules:
                    owner, part = MODULES[module]
                    if owner != weight:
                        continue
                    firsts[part] = len(factors)
                    bound = width**-0.5
                    down = random.uniform(-bound, bound, (rank, width)).astype(np.float32)
                    up = np.zeros((sizes[part], rank), np.float32)
                    prefix = f"layers.{layer}.{module}"
                    factors += [Parameter(Tensor(down), name=f"{prefix}.lora_A")]
                    factors += [Parameter(Tensor(up), name=f"{prefix}.lora_B")]
                self.parts = (*self.parts, (tuple(sizes), tuple(firsts), width))
        return factors

    def stack(self, sizes: Any, firsts: Any, width: int) -> Any:
        """Return a weight's factors A (parts * rank, width) and B (outputs, parts * rank), as `AdapterFactors` does."""
        down: Any = ()
        up: Any = ()
        for part in range(len(sizes)):
            row: Any = ()
            for other in range(len(sizes)):
                if other == part and firsts[part] >= 0:
                    row = (*row, self.factors[firsts[part] + 1] * self.scale)
                else:
                    row = (*row, ops.zeros((sizes[part], self.rank), ms.float32))
            up = (*up, ops.concat(row, 1))
            if firsts[part] >= 0:
                down = (*down, self.factors[firsts[part]])
            else:
                down = (*down, ops.zeros((self.rank, width), ms.float32))
        return ops.concat(down, 0), ops.concat(up, 0)

    def construct(self, ids: Any, next_ids: Any, counts: Any, positions: Any, segments: Any) -> Any:
        """Return the windows' loss.

        Args:
            ids: int32 (N, L).
            next_ids: Targets, int32 (N, L).
            counts: float32 (N, L), 1 where the loss counts.
            positions: int32 (N, L).
            segments: int32 (N, L).
        """
        length = ids.shape[1]
        adapters: Any = (self.whole, self.whole)
        for sizes, firsts, width in self.parts:
            adapters = adapters + self.stack(sizes, firsts, width)
        steps = ms.numpy.arange(length)
        allowed = ops.logical_and(segments[:, :, None] == segments[:, None, :], steps[None, :] <= steps[:, None])
        masks = (ops.where(allowed, 0.0, MASKED).reshape(-1, 1, length, length),)
        hidden = self.decoder.compute_hidden(ids, positions, masks, self.tables, self.base, adapters)
        logits = self.dense(hidden, self.base[self.head_index])
        losses = ops.cross_entropy(logits, next_ids.reshape(-1), reduction="none")
        return (losses * counts.reshape(-1)).sum() / (ids.shape[0] * self.tokens_per_window)

    def get_adapter(self) -> dict[str, NDArray[np.float32]]:
        """Return the adapter's factors by name, `layers.<n>.<module>.lora_A` (rank, in) and `lora_B` (out, rank)."""
        return {factor.name: factor.asnumpy() for factor in self.factors}

    def get_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return all weights by name, an adapter merged."""
        base = {weight.name: weight.asnumpy() for weight in self.base}
        return base if self.lora is None else merge_adapter(self.config, base, self.get_adapter(), self.lora)


def build_arrays(data: LanguageModelData) -> dict[str, NDArray[Any]]:
    """Return windows as `fit`'s data for a `TrainedDecoder`."""
    names = {"ids": data.ids, "next_ids": data.targets, "counts": data.weights}
    return {**names, "positions": data.positions, "segments": data.segments}
