"""One configurable decoder: GPT-2, Llama, Mistral, Qwen2 and Qwen3.

Weights are inputs of the graph, so that the graphs of all batch sizes and cache lengths share one copy, and so that a
training passes its parameters. `list_weights` names them in the graph's order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
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
    exponents = 2 * np.arange(config.head_size // 2) / config.head_size
    angles = np.outer(np.arange(config.max_length), (config.rope_theta or 1.0) ** -exponents)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def apply_norm(config: DecoderConfig, hidden: Any, weights: Any, index: int) -> Any:
    """Normalise the last axis by the weight at `index`, and with layer norm the bias behind it."""
    if config.norm == "layer":
        hidden = hidden - ops.mean(hidden, -1, True)
    scale = ops.rsqrt(ops.mean(hidden * hidden, -1, True) + config.epsilon)
    hidden = hidden * scale * weights[index]
    if config.norm == "layer":
        hidden = hidden + weights[index + 1]
    return hidden


class _Block(nn.Cell):  # type: ignore[misc]
    """Any layer; the attributes are positions among a layer's weights."""

    def __init__(self, config: DecoderConfig, names: Sequence[str], cached: bool, adapted: bool) -> None:
        super().__init__()
        self.config, self.cached, self.adapted = config, cached, adapted
        indices = {name: index for index, name in enumerate(names)}
        self.norm1, self.norm2 = indices["norm1.weight"], indices["norm2.weight"]
        self.qkv, self.out = indices["qkv.weight"], indices["out.weight"]
        self.up, self.down = indices["up.weight"], indices["down.weight"]
        self.q_norm, self.k_norm = indices.get("q_norm", -1), indices.get("k_norm", -1)
        self.query = config.heads * config.head_size
        self.half = config.head_size // 2
        self.scale = config.head_size**-0.5
        self.dense = ops.MatMul(transpose_b=True)
        self.score = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def project(self, hidden: Any, weights: Any, index: int, bias: bool) -> Any:
        hidden = self.dense(hidden, weights[index])
        return hidden + weights[index + 1] if bias else hidden

    def adapt(self, hidden: Any, mask: Any, down: Any, up: Any) -> Any:
        """Return the adapters' updates; `where`, as an overflow of one adapter times 0 is NaN for all rows."""
        return self.dense(ops.where(mask, self.dense(hidden, down), 0.0), up)

    def normalise(self, value: Any, weight: Any) -> Any:
        return value * ops.rsqrt(ops.mean(value * value, -1, True) + self.config.epsilon) * weight

    def rotate(self, value: Any, rotations: Any) -> Any:
        """Rotate (B, heads, S, size) by cosines and sines, each (B, 1, S, size / 2)."""
        first, second = value[..., : self.half], value[..., self.half :]
        cosine, sine = rotations
        return ops.concat((first * cosine - second * sine, second * cosine + first * sine), -1)

    def activate(self, value: Any) -> Any:
        if self.config.activation == "silu":
            return value * ops.sigmoid(value)
        if self.config.activation == "gelu":
            return value * 0.5 * (1.0 + ops.erf(value * 0.7071067811865476))
        return value * ops.sigmoid(_TWO_Z * (value + _CUBIC * value * value * value))

    def construct(self, hidden: Any, rotations: Any, masks: Any, cache: Any, weights: Any, adapters: Any) -> Any:
        """Return the layer's output (B * S, width) and a pair of new keys and values, each (B, kv_heads, S, head_size).

        Args:
            hidden: (B * S, width).
            rotations: Cosines and sines, each (B, 1, S, head_size / 2); not used with learned positions.
            masks: Added to the scores: of new tokens (B, 1, S, S), and of cached ones (B, 1, 1, L).
            cache: Keys and values, each (B, kv_heads, L, head_size), or an empty tuple.
            weights: The layer's, in the order of `list_weights`.
            adapters: With adapters, the masks of `qkv` and `out`, then the layer's factors; see `AdapterFactors`.
        """
        config = self.config
        batch, length = masks[0].shape[0], masks[0].shape[2]
        groups = config.heads // config.kv_heads
        size = cache[0].shape[2] if self.cached else 0
        normed = apply_norm(config, hidden, weights, self.norm1)
        fused = self.project(normed, weights, self.qkv, config.qkv_bias)
        if self.adapted:
            fused = fused + self.adapt(normed, adapters[0], adapters[2], adapters[3])
        fused = fused.reshape(batch, length, config.heads + 2 * config.kv_heads, config.head_size).transpose(0, 2, 1, 3)
        # Queries and keys are rotated together: fewer operators compile faster.
        heads, value = fused[:, : config.heads + config.kv_heads], fused[:, config.heads + config.kv_heads :]
        if config.qk_norm:
            query = self.normalise(heads[:, : config.heads], weights[self.q_norm])
            key = self.normalise(heads[:, config.heads :], weights[self.k_norm])
            heads = ops.concat((query, key), 1)
        if config.rope_theta:
            heads = self.rotate(heads, rotations)
        query, key = heads[:, : config.heads], heads[:, config.heads :]
        # Query heads that share a key head are rows of one product: keys are not repeated.
        query = (query * self.scale).reshape(batch, config.kv_heads, groups * length, config.head_size)
        scores = self.score(query, key).reshape(batch, config.heads, length, length) + masks[0]
        if self.cached:
            old = self.score(query, cache[0])
            scores = ops.concat((old.reshape(batch, config.heads, length, size) + masks[1], scores), -1)
        shape = (batch, config.kv_heads, groups * length, -1)
        shares = self.softmax(scores)
        if self.cached:
            mixed = self.mix(shares[..., :size].reshape(shape), cache[1])
            mixed = mixed + self.mix(shares[..., size:].reshape(shape), value)
        else:
            mixed = self.mix(shares.reshape(shape), value)
        mixed = mixed.reshape(batch, config.heads, length, config.head_size).transpose(0, 2, 1, 3)
        mixed = mixed.reshape(batch * length, self.query)
        hidden = hidden + self.project(mixed, weights, self.out, config.out_bias)
        if self.adapted:
            hidden = hidden + self.adapt(mixed, adapters[1], adapters[4], adapters[5])
        inner = self.project(apply_norm(config, hidden, weights, self.norm2), weights, self.up, config.mlp_bias)
        if config.gated:
            inner = self.activate(inner[:, : config.hidden]) * inner[:, config.hidden :]
        else:
            inner = self.activate(inner)
        return hidden + self.project(inner, weights, self.down, config.mlp_bias), (key, value)


class Decoder(nn.Cell):  # type: ignore[misc]
    """A decoder without weights of its own.

    Args:
        config: Dimensions and variants.
        cached: Whether the graph has caches as inputs.
        adapted: Whether the graph has adapters as inputs.
    """

    def __init__(self, config: DecoderConfig, *, cached: bool = False, adapted: bool = False) -> None:
        super().__init__()
        self.config, self.cached, self.adapted = config, cached, adapted
        names = {name: index for index, name in enumerate(list_weights(config))}
        layer = [name.removeprefix("layers.0.") for name in names if name.startswith("layers.0.")]
        # One cell for all layers: MindSpore infers it once, and compiles in half the time of a cell per layer.
        self.block = _Block(config, layer, cached, adapted)
        self.first_layer, self.layer_size = names[f"layers.0.{layer[0]}"], len(layer)
        self.norm = names["norm.weight"]
        self.head = names.get("head", 0)
        self.first_weight = 2 * config.layers if cached else 0
        self.first_adapter = self.first_weight + len(names)
        self.dense = ops.MatMul(transpose_b=True)

    def compute_hidden(
        self, ids: Any, positions: Any, masks: Any, tables: Any, caches: Any, weights: Any, adapters: Any = ()
    ) -> Any:
        """Return the normalised hidden states (B * S, width) and all new keys and values.

        Args:
            ids: int32 (B, S).
            positions: int32 (B, S).
            masks: As a block has them; a training passes its own, of packed texts.
            tables: `compute_rotations`' cosines and sines.
            caches: Keys and values by layer, or an empty tuple.
            weights: In the order of `list_weights`.
            adapters: `AdapterFactors`' two masks, then its arrays; or an empty tuple.
        """
        batch, length = ids.shape
        rows = positions.reshape(-1)
        hidden = ops.gather(weights[0], ids.reshape(-1), 0)
        if not self.config.rope_theta:
            hidden = hidden + ops.gather(weights[1], rows, 0)
        shape = (batch, 1, length, self.config.head_size // 2)
        rotations = (ops.gather(tables[0], rows, 0).reshape(shape), ops.gather(tables[1], rows, 0).reshape(shape))
        pairs = ()
        for index in range(self.config.layers):
            cache = caches[2 * index : 2 * index + 2] if self.cached else ()
            start = self.first_layer + index * self.layer_size
            factors = adapters[:2] + adapters[4 * index + 2 : 4 * index + 6] if self.adapted else ()
            layer = weights[start : start + self.layer_size]
            hidden, pair = self.block(hidden, rotations, masks, cache, layer, factors)
            pairs = pairs + pair
        return apply_norm(self.config, hidden, weights, self.norm), pairs

    def make_masks(self, causal: Any, position: Any, caches: Any) -> Any:
        """Return the masks of new and cached tokens."""
        if self.cached:
            slots = ms.numpy.arange(caches[0].shape[2])
            old = ops.where(slots[None, :] < position[:, None], 0.0, _MASKED)
            return causal, old.reshape(position.shape[0], 1, 1, -1)
        return (causal,)

    def construct(self, ids: Any, position: Any, last: Any, cosine: Any, sine: Any, *tensors: Any) -> Any:
        """Extend sequences by S tokens.

        Args:
            ids: int32 (B, S), padded on the right.
            position: Tokens that each sequence's cache holds, int32 (B,).
            last: Index among the S whose logits are returned, int32 (B,).
            cosine: See `compute_rotations`.
            sine: See `compute_rotations`.
            tensors: With caches, keys and values by layer, each (B, kv_heads, L, head_size); then the weights; with
                adapters, then `AdapterFactors`' two masks and its arrays.

        Returns:
            Logits (B, V), normalised hidden states (B, S, width), new rows (2 * layers, B, kv_heads, S, head_size).
        """
        batch, length = ids.shape
        steps = ms.numpy.arange(length)
        causal = ops.where(steps[None, :] <= steps[:, None], 0.0, _MASKED).reshape(1, 1, length, length)
        causal = ops.tile(causal, (batch, 1, 1, 1))
        caches, weights = tensors[: self.first_weight], tensors[self.first_weight : self.first_adapter]
        masks = self.make_masks(causal, position, caches)
        # Padding may lie beyond the tables; a gather out of range breaks the graph.
        positions = ops.minimum(position[:, None] + steps[None, :], self.config.max_length - 1)
        adapters = tensors[self.first_adapter :]
        hidden, rows = self.compute_hidden(ids, positions, masks, (cosine, sine), caches, weights, adapters)
        hidden = hidden.reshape(batch, length, self.config.width)
        chosen = hidden[ms.numpy.arange(batch), last]
        return self.dense(chosen, weights[self.head]), hidden, ops.stack(rows, 0)
