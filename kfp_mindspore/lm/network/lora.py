"""Low-rank adapters (LoRA): which projections they update, and networks that they are merged into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.network.decoder import DecoderConfig

# A projection's weight in the network, and its number among the weight's stacked parts.
MODULES = {"q_proj": ("qkv", 0), "k_proj": ("qkv", 1), "v_proj": ("qkv", 2), "output_proj": ("out", 0)}


@dataclass(frozen=True)
class LoraConfig:
    """A low-rank adapter, by torchtune's names.

    Args:
        lora_rank: Each update's rank.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        lora_attn_modules: Projections with an update: q_proj, k_proj, v_proj, output_proj.
        lora_dropout: Fraction of an update's inputs that is set to 0 in training.

    Raises:
        ValidationError: A value is out of range; the message names the field.
    """

    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_attn_modules: tuple[str, ...] = ("q_proj", "v_proj")
    lora_dropout: float = 0.0

    def __post_init__(self) -> None:
        errors = [] if self.lora_rank >= 1 else [f"lora_rank: must be >= 1, got {self.lora_rank}"]
        if not self.lora_alpha > 0:
            errors.append(f"lora_alpha: must be > 0, got {self.lora_alpha}")
        if not 0 <= self.lora_dropout < 1:
            errors.append(f"lora_dropout: must be at least 0 and below 1, got {self.lora_dropout}")
        unknown = [name for name in self.lora_attn_modules if name not in MODULES]
        if unknown or not self.lora_attn_modules:
            known = ", ".join(MODULES)
            errors.append(f"lora_attn_modules: must be some of {known}, got {', '.join(unknown) or 'none'}")
        if errors:
            raise ValidationError(errors, subject="the adapter's configuration")


def list_parts(config: DecoderConfig, weight: str) -> list[int]:
    """Return the heights of the projections that `qkv` or `out` stacks."""
    query, key = config.heads * config.head_size, config.kv_heads * config.head_size
    return [query, key, key] if weight == "qkv" else [config.width]


def merge_adapter(
    config: DecoderConfig,
    weights: Mapping[str, NDArray[np.float32]],
    adapter: Mapping[str, NDArray[np.float32]],
    lora: LoraConfig,
) -> dict[str, NDArray[np.float32]]:
    """Return the weights with an adapter's updates added.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names; unchanged.
        adapter: `TrainedDecoder.get_adapter`'s factors.
        lora: The adapter's configuration.
    """
    merged = dict(weights)
    for layer in range(config.layers):
        for module in lora.lora_attn_modules:
            owner, part = MODULES[module]
            name, prefix = f"layers.{layer}.{owner}.weight", f"layers.{layer}.{module}"
            sizes = list_parts(config, owner)
            start = sum(sizes[:part])
            update = adapter[f"{prefix}.lora_B"] @ adapter[f"{prefix}.lora_A"] * (lora.lora_alpha / lora.lora_rank)
            changed = merged[name].copy()
            changed[start : start + sizes[part]] += update
            merged[name] = changed
    return merged
