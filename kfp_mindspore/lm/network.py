"""One configurable decoder: GPT-2, Llama, Mistral, Qwen2 and Qwen3.

Weights are inputs of the graph, so that the graphs of all batch sizes and cache lengths share one copy, and so that a
training passes its parameters. `list_weights` names them in the graph's order.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError

_MASKED = -1e9
# GELU's tanh form equals x * sigmoid(2z); ops.tanh is wrong by up to 1e-4 on CPU (MindSpore 2.9).
_TWO_Z, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's dimensions and variants.

    Args:
        vocabulary_size: Token IDs.
        width: Hidden size.
        layers: Blocks.
        heads: Query heads.
        kv_heads: Key and value heads; divides `heads`.
        head_size: Features per head.
        hidden: Inner size of the feed-forward network.
        max_length: Most positions.
        rope_theta: Base of the rotary positions; 0 for learned positions.
        epsilon: Added to the variance by norms.
        norm: `rms` or `layer`.
        activation: `silu`, `gelu` or `gelu_tanh`.
        gated: Whether the feed-forward network is gated.
        tied: Whether the head is the embedding.
        qk_norm: Whether queries and keys are normalised per head.
        qkv_bias: Whether queries, keys and values have biases.
        out_bias: Whether the attention's output has a bias.
        mlp_bias: Whether the feed-forward network has biases.

    Raises:
        ValidationError: A size is not positive or sizes do not fit; the message names them.
    """

    vocabulary_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    max_length: int
    rope_theta: float = 10000.0
    epsilon: float = 1e-5
    norm: str = "rms"
    activation: str = "silu"
    gated: bool = True
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocabulary_size", "width", "layers", "heads", "kv_heads", "head_size", "hidden", "max_length")
        errors = [f"{name}: must be >= 1, got {value}" for name in sizes if (value := getattr(self, name)) < 1]
        if not errors and self.heads % self.kv_heads:
            errors.append(f"kv_heads: must divide {self.heads} heads, got {self.kv_heads}")
        if self.rope_theta and self.head_size % 2:
            errors.append(f"head_size: must be even with rotary positions, got {self.head_size}")
        errors += [
            f"{name}: must be one of {', '.join(allowed)}, got {value!r}"
            for name, allowed in (("norm", ("rms", "layer")), ("activation", ("silu", "gelu", "gelu_tanh")))
            if (value := getattr(self, name)) not in allowed
        ]
        if errors:
            raise ValidationError(errors, subject="the decoder's configuration")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def list_weights(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return each weight's shape by name, in the graph's order; matrices are (outputs, inputs).

    `qkv` stacks queries, keys and values; `up` stacks gate and up of a gated network.

    Args:
        config: The decoder's.
    """
    width, hidden = config.width, config.hidden
    query = config.heads * config.head_size
    fused = query + 2 * config.kv_heads * config.head_size
    up = hidden * (2 if config.gated else 1)
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary_size, width)}
    if not config.rope_theta:
        shapes["positions"] = (config.max_length, width)

    def add_norm(name: str) -> None:
        shapes[f"{name}.weight"] = (width,)
        if config.norm == "layer":
            shapes[f"{name}.bias"] = (width,)

    def add_dense(name: str, shape: tuple[int, int], bias: bool) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    for index in range(config.layers):
        layer = f"layers.{index}"
        add_norm(f"{layer}.norm1")
        add_dense(f"{layer}.qkv", (fused, width), config.qkv_bias)
        if config.qk_norm:
            shapes[f"{layer}.q_norm"] = shapes[f"{layer}.k_norm"] = (config.head_size,)
        add_dense(f"{layer}.out", (width, query), config.out_bias)
        add_norm(f"{layer}.norm2")
        add_dense(f"{layer}.up", (up, width), config.mlp_bias)
        add_dense(f"{layer}.down", (width, hidden), config.mlp_bias)
    add_norm("norm")
    if not config.tied:
        shapes["head"] = (config.vocabulary_size, width)
    return shapes


def compute_rotations(config: DecoderConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosines and sines of the rotary positions, each float32 with shape (max_length, head_size / 2).

    Args:
        config: The decoder's; its `rope_theta` is not 0.
    """
    exponents = np.arange(0, config.head_size, 2) / config.head_size
    angles = np.outer(np.arange(config.max_length), (config.rope_theta or 1.0) ** -exponents)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
